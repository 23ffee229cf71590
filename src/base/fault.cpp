// Counting down to a fault.
#include "base/fault.h"

#include <c10/util/Exception.h>

#include <mutex>

namespace torch_lazy {
namespace {

constexpr const char* kNames[] = {"capture", "compile", "allocate", "execute", "read"};

}  // namespace

void count_down(Stage stage) {
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  const std::string text = settings().fault.get();
  const std::string name = kNames[static_cast<int>(stage)];
  if (text.rfind(name + ":", 0) != 0) {
    return;
  }
  const std::string rest = text.substr(name.size() + 1);
  TORCH_CHECK_VALUE(!rest.empty() && rest.find_first_not_of("0123456789") == std::string::npos,
                    "torch-lazy: setting TORCH_LAZY_FAULT is '", text,
                    "', expected a stage, a colon and a number");
  const int64_t left = std::stoll(rest);
  if (left > 0) {
    settings().fault.set(name + ":" + std::to_string(left - 1));
    return;
  }
  settings().fault.set("");
  TORCH_CHECK_WITH(OutOfMemoryError, stage != Stage::allocate,
                   "torch-lazy: fault on request: ", "no memory");
  TORCH_CHECK(false, "torch-lazy: fault on request in stage ", name);
}

}  // namespace torch_lazy
