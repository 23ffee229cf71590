// Counting down to a fault.
#include "base/fault.h"

#include "base/ranked_mutex.h"

#include <c10/util/Exception.h>

#include <mutex>
#include <string>

namespace torch_lazy {
namespace {

constexpr const char* kNames[] = {"capture", "compile", "allocate", "execute", "read"};

}  // namespace

void count_down(Stage stage) {
  static auto* mutex = new RankedMutex(Rank::fault);
  const std::string name = kNames[static_cast<int>(stage)];
  std::string text;
  std::string rest;
  {
    std::lock_guard<RankedMutex> lock(*mutex);
    text = settings().fault.get();
    if (text.rfind(name + ":", 0) != 0) {
      return;
    }
    rest = text.substr(name.size() + 1);
    if (rest.empty() || rest.find_first_not_of("0123456789") != std::string::npos) {
      rest.clear();
    } else if (const int64_t left = std::stoll(rest); left > 0) {
      settings().fault.set(name + ":" + std::to_string(left - 1));
      return;
    } else {
      settings().fault.set("");
    }
  }
  TORCH_CHECK_VALUE(!rest.empty(), "torch-lazy: setting TORCH_LAZY_FAULT is '", text,
                    "', expected a stage, a colon and a number");
  TORCH_CHECK_WITH(OutOfMemoryError, stage != Stage::allocate,
                   "torch-lazy: fault on request: ", "no memory");
  TORCH_CHECK(false, "torch-lazy: fault on request in stage ", name);
}

}  // namespace torch_lazy
