// Opens plug-ins: shared libraries with one exported function.
#include "base/hooks.h"
#include "runtime/backend_choice.h"
#include "runtime/partitioned_plan.h"

#include <c10/util/Exception.h>

#include <dlfcn.h>

#include <filesystem>

namespace torch_lazy {
namespace {

/// "0.1" of "0.1.2".
std::string minor_version(const std::string& version) {
  return version.substr(0, version.find('.', version.find('.') + 1));
}

std::string find_library(const std::string& name) {
  std::error_code error;
  if (std::filesystem::is_regular_file(name, error)) {
    return std::filesystem::absolute(name).string();
  }
  std::string path = hooks::backend_path(name);
  TORCH_CHECK(!path.empty(), "torch-lazy: the backend '", name,
              "' was not found: there is no such file, and no installed Python package offers a "
              "backend of that name (entry point group torch_lazy.backends)");
  TORCH_CHECK(std::filesystem::is_regular_file(path, error), "torch-lazy: the library of backend '",
              name, "', ", path, ", does not exist");
  return path;
}

}  // namespace

std::shared_ptr<Backend> open_plugin(const std::string& name) {
  const std::string path = find_library(name);
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char* reason = dlerror();
    TORCH_CHECK(false, "torch-lazy: the backend ", path,
                " cannot be loaded: ", reason ? reason : "unknown reason",
                ". It has to be compiled for PyTorch ", TORCH_VERSION, " and torch-lazy ",
                minor_version(TORCH_LAZY_VERSION));
  }
  using Entry = const BackendPlugin* (*)();
  auto entry = reinterpret_cast<Entry>(dlsym(library, "torch_lazy_backend_v1"));
  TORCH_CHECK(entry, "torch-lazy: ", path,
              " is no backend for this version of torch-lazy: it does not export "
              "torch_lazy_backend_v1 (see TORCH_LAZY_BACKEND_PLUGIN in torch_lazy/backend.h)");
  const BackendPlugin* plugin = entry();
  TORCH_CHECK(plugin && plugin->create, "torch-lazy: the backend ", path, " is empty");
  TORCH_CHECK(plugin->interface_version == kBackendInterface &&
                  minor_version(plugin->torch_lazy_version) == minor_version(TORCH_LAZY_VERSION) &&
                  std::string(plugin->torch_version) == TORCH_VERSION,
              "torch-lazy: the backend ", path, " was compiled for interface ",
              plugin->interface_version, " of torch-lazy ", plugin->torch_lazy_version,
              " and for PyTorch ", plugin->torch_version, ", but this is interface ",
              kBackendInterface, " of torch-lazy ", TORCH_LAZY_VERSION, " with PyTorch ",
              TORCH_VERSION, "; compile it anew");
  std::shared_ptr<Backend> backend;
  try {
    backend.reset(plugin->create());
    TORCH_CHECK(backend, "it gave no backend");
    (void)backend->name();
  } catch (...) {
    raise_from(path, "its creation");
  }
  return backend;
}

}  // namespace torch_lazy
