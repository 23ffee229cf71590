// PyTorch's warnings: kept from the program, or given to it later.
#pragma once

#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace torch_lazy {

using Warnings = std::vector<c10::Warning>;

inline bool contains(const Warnings& warnings, const c10::Warning& warning) {
  return std::any_of(warnings.begin(), warnings.end(),
                     [&](const c10::Warning& other) { return other.msg() == warning.msg(); });
}

inline void add_new(Warnings& warnings, Warnings more) {
  for (c10::Warning& warning : more) {
    if (!contains(warnings, warning)) {
      warnings.push_back(std::move(warning));
    }
  }
}

/// While alive, warnings of this thread come here instead of to the program.
class CollectedWarnings : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override { warnings.push_back(warning); }

  Warnings warnings;

 private:
  c10::WarningUtils::WarningHandlerGuard guard_{this};
};

/// While alive, those of this thread's warnings that the program has had already are dropped.
class DroppedWarnings : public c10::WarningHandler {
 public:
  explicit DroppedWarnings(const Warnings& dropped) : dropped_(dropped) {}

  void process(const c10::Warning& warning) override {
    if (!contains(dropped_, warning)) {
      before_->process(warning);
    }
  }

 private:
  const Warnings& dropped_;
  c10::WarningHandler* before_ = c10::WarningUtils::get_warning_handler();
  c10::WarningUtils::WarningHandlerGuard guard_{this};
};

}  // namespace torch_lazy
