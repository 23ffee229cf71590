#include "backends/cpu/kernel_library.h"

#include "backends/cpu/compile_pool.h"
#include "backends/cpu/kernel_store.h"
#include "base/ranked_mutex.h"
#include "base/settings.h"
#include "codegen/codegen.h"
#include <torch_lazy/metrics.h>

#include <c10/util/Exception.h>

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <mutex>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <utility>

namespace torch_lazy {
namespace {

/// The code generator's library, opened when the first kernel is needed.
struct Generator {
  decltype(&tlc_version) version = nullptr;
  decltype(&tlc_open) open = nullptr;
  decltype(&tlc_features) features = nullptr;
  decltype(&tlc_compile) compile = nullptr;
  decltype(&tlc_load) load = nullptr;
  decltype(&tlc_function) function = nullptr;
  decltype(&tlc_unload) unload = nullptr;
  decltype(&tlc_free) free = nullptr;
  tlc_target* target = nullptr;
  std::string trouble;
};

template <typename F>
bool find(void* library, const char* name, F& function) {
  function = reinterpret_cast<F>(dlsym(library, name));
  return function != nullptr;
}

/// Beside the library that this code is in.
std::string generator_path() {
  Dl_info info;
  if (!dladdr(reinterpret_cast<void*>(&generator_path), &info) || !info.dli_fname) {
    return "libtorch_lazy_codegen.so";
  }
  return (std::filesystem::path(info.dli_fname).parent_path() / "libtorch_lazy_codegen.so")
      .string();
}

Generator open_generator() {
  Generator g;
  const std::string path =
      settings().codegen_library.empty() ? generator_path() : settings().codegen_library.get();
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    g.trouble = dlerror();
    return g;
  }
  if (!find(library, "tlc_version", g.version) || !find(library, "tlc_open", g.open) ||
      !find(library, "tlc_features", g.features) || !find(library, "tlc_compile", g.compile) ||
      !find(library, "tlc_load", g.load) || !find(library, "tlc_function", g.function) ||
      !find(library, "tlc_unload", g.unload) || !find(library, "tlc_free", g.free)) {
    g.trouble = path + " is not torch-lazy's code generator";
    return g;
  }
  if (g.version() != TORCH_LAZY_CODEGEN_VERSION) {
    g.trouble = path + " has version " + std::to_string(g.version()) + " of the interface, " +
                std::to_string(TORCH_LAZY_CODEGEN_VERSION) + " is needed";
    return g;
  }
  char* error = nullptr;
  const std::string target =
      settings().codegen_target.empty() ? "host" : settings().codegen_target.get();
  g.target = g.open(target.c_str(), &error);
  if (!g.target) {
    g.trouble = error ? error : "no code for this processor";
    g.free(error);
  }
  return g;
}

const Generator& generator() {
  static std::atomic<const Generator*> known{nullptr};
  if (const Generator* opened = known.load(std::memory_order_acquire)) {
    return *opened;
  }
  UsesCodeGenerator inside;
  static const Generator* instance = new Generator(open_generator());
  known.store(instance, std::memory_order_release);
  return *instance;
}

class Code : public LoadedKernel {
 public:
  explicit Code(tlc_code* code) : code_(code) {
    function = reinterpret_cast<codegen::Function>(generator().function(code));
  }
  ~Code() override {
    UsesCodeGenerator inside;
    generator().unload(code_);
  }

 private:
  tlc_code* code_;
};

std::string take(char* message) {
  std::string text = message ? message : "unknown reason";
  generator().free(message);
  return text;
}

KernelPtr load(const std::string& object) {
  char* error = nullptr;
  tlc_code* code = generator().load(generator().target, object.data(), object.size(), &error);
  TORCH_CHECK(code, "torch-lazy: machine code cannot be loaded: ", take(error));
  return std::make_shared<Code>(code);
}

KernelPtr make(const std::string& text) {
  static auto& compiled = metrics::counter("KernelCompiled");
  static auto& compile_time = metrics::metric("KernelCompileTime", metrics::Kind::time);
  const Generator& g = generator();
  const std::string key = "torch-lazy kernel " + std::to_string(TORCH_LAZY_CODEGEN_VERSION) + "\n" +
                          g.features(g.target) + "\n" + text;
  if (std::optional<std::string> object = kernel_store().find(key)) {
    try {
      return load(*object);
    } catch (const c10::Error&) {
      // made again below
    }
  }
  const auto start = std::chrono::steady_clock::now();
  tlc_result result = g.compile(g.target, text.c_str());
  TORCH_CHECK(result.object, "torch-lazy: a kernel cannot be compiled: ", take(result.error), "\n",
              text);
  const std::string object(result.object, result.size);
  g.free(result.object);
  compiled.add(1);
  compile_time.add(static_cast<double>(
      std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count()));
  kernel_store().put(key, object);
  return load(object);
}

/// Kernels that some plan uses.
class Library {
 public:
  std::vector<KernelPtr> find(const std::vector<std::string>& texts) {
    generator();  // nobody opens it from inside
    std::vector<KernelPtr> result(texts.size());
    std::vector<KernelPtr> surplus;  // freed after the lock
    std::vector<size_t> missing;
    {
      std::lock_guard<RankedMutex> lock(mutex_);
      std::unordered_map<std::string_view, size_t> asked;
      for (size_t i = 0; i < texts.size(); ++i) {
        auto it = kernels_.find(texts[i]);
        result[i] = it == kernels_.end() ? nullptr : it->second.lock();
        if (!result[i] && asked.emplace(texts[i], i).second) {
          missing.push_back(i);
        }
      }
    }
    std::atomic<size_t> next{0};
    std::mutex error_mutex;
    std::exception_ptr error;
    const bool in_background = CompilePool::is_own_thread();
    auto work = [&] {
      for (size_t k = next++; k < missing.size(); k = next++) {
        try {
          TORCH_CHECK(!in_background || !CompilePool::instance().is_finishing(),
                      "torch-lazy: the process ends");
          UsesCodeGenerator inside;
          result[missing[k]] = make(texts[missing[k]]);
        } catch (...) {
          std::lock_guard<std::mutex> lock(error_mutex);
          error = std::current_exception();
        }
      }
    };
    const size_t helpers = std::min(missing.size(), CompilePool::instance().helpers());
    std::vector<std::thread> threads;
    try {
      for (size_t t = 1; t < helpers; ++t) {
        threads.emplace_back(work);
      }
    } catch (const std::system_error&) {
      // those that are there do the work
    }
    work();
    for (std::thread& thread : threads) {
      thread.join();
    }
    if (error) {
      std::rethrow_exception(error);
    }
    std::lock_guard<RankedMutex> lock(mutex_);
    for (size_t i : missing) {
      std::weak_ptr<const LoadedKernel>& known = kernels_[texts[i]];
      if (KernelPtr other = known.lock()) {
        surplus.push_back(std::exchange(result[i], std::move(other)));
      } else {
        known = result[i];
      }
    }
    std::unordered_map<std::string_view, KernelPtr> made;
    for (size_t i : missing) {
      made.emplace(texts[i], result[i]);
    }
    for (size_t i = 0; i < texts.size(); ++i) {
      if (!result[i]) {
        result[i] = made.at(texts[i]);
      }
    }
    return result;
  }

 private:
  RankedMutex mutex_{Rank::kernels};
  std::unordered_map<std::string, std::weak_ptr<const LoadedKernel>> kernels_;
};

}  // namespace

bool code_generator_available() {
  if (generator().target) {
    return true;
  }
  static std::once_flag once;
  std::call_once(once, [] {
    TORCH_WARN(
        "torch-lazy: graphs are not compiled but run by PyTorch's kernels, because the code "
        "generator cannot be used: ",
        generator().trouble);
  });
  return false;
}

std::vector<KernelPtr> find_kernels(const std::vector<std::string>& texts) {
  static auto* library = new Library();
  return library->find(texts);
}

}  // namespace torch_lazy
