// The C interface: exceptions become messages.
#include "codegen/codegen.h"
#include "codegen/llvm/compile.h"
#include "codegen/llvm/load.h"

#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>

namespace {

using namespace torch_lazy::codegen;

char* copy_text(const char* text, size_t size) {
  char* copy = static_cast<char*>(std::malloc(size + 1));
  if (copy) {
    std::memcpy(copy, text, size);
    copy[size] = 0;
  }
  return copy;
}

/// Runs `body`; an exception ends here, as a message.
template <class Body>
void guarded(char** error, const Body& body) {
  const char* message = "code generator: unknown error";
  std::exception_ptr failure;
  if (error) {
    *error = nullptr;
  }
  try {
    body();
    return;
  } catch (const std::exception& exception) {
    if (error) {
      *error = copy_text(exception.what(), std::strlen(exception.what()));
    }
    return;
  } catch (...) {
  }
  if (error) {
    *error = copy_text(message, std::strlen(message));
  }
}

Kernel kernel_from(const char* text) {
  Kernel kernel = parse(text);
  verify(kernel);
  return kernel;
}

}  // namespace

struct tlc_target {
  explicit tlc_target(const char* name) : target(name) {}

  Target target;
  std::once_flag once;
  std::unique_ptr<Loader> loader;
};

struct tlc_code {
  tlc_target* target;
  Loader::Code code;
};

int tlc_version(void) {
  return TORCH_LAZY_CODEGEN_VERSION;
}

tlc_target* tlc_open(const char* target, char** error) {
  tlc_target* result = nullptr;
  guarded(error, [&] { result = new tlc_target(target); });
  return result;
}

void tlc_close(tlc_target* target) {
  delete target;
}

const char* tlc_features(const tlc_target* target) {
  return target->target.text().c_str();
}

tlc_result tlc_compile(const tlc_target* target, const char* kernel_text) {
  tlc_result result = {};
  guarded(&result.error, [&] {
    const Compiled compiled = compile(target->target, kernel_from(kernel_text));
    const std::string packed = pack(target->target, compiled.object);
    std::memcpy(result.seconds, compiled.seconds, sizeof result.seconds);
    result.object = copy_text(packed.data(), packed.size());
    result.size = packed.size();
  });
  return result;
}

char* tlc_show(const tlc_target* target, const char* kernel_text, const char* what, char** error) {
  char* result = nullptr;
  guarded(error, [&] {
    const std::string text = show(target->target, kernel_from(kernel_text), what);
    result = copy_text(text.data(), text.size());
  });
  return result;
}

tlc_code* tlc_load(tlc_target* target, const char* object, size_t size, char** error) {
  tlc_code* result = nullptr;
  guarded(error, [&] {
    const std::string_view inside = unpack(target->target, {object, size});
    std::call_once(target->once,
                   [&] { target->loader = std::make_unique<Loader>(target->target); });
    result = new tlc_code{target, target->loader->load(inside)};
  });
  return result;
}

void* tlc_function(const tlc_code* code) {
  return code->code.function;
}

void tlc_unload(tlc_code* code) {
  if (code) {
    code->target->loader->unload(code->code);
    delete code;
  }
}

void tlc_free(void* memory) {
  std::free(memory);
}
