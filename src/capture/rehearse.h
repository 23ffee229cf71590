// Calls that were not seen before are made once on scratch tensors, so that errors and warnings
// that do not depend on data come at the call, as in eager, and not at the run.
#pragma once

#include "base/warnings.h"
#include "capture/call.h"

namespace torch_lazy {

/// The trial of one call.
class Rehearsal {
 public:
  /// Calls the real operator on zeros: in the call's own layouts where these are small, else on
  /// a few elements for each tensor, once per set of dtypes. Its warnings become the description's.
  Rehearsal(const Call& call, Description& description);

  /// False: the operator raised. The zeros may be at fault and not the call, so the caller makes
  /// it at once: eager's error is raised, or the call works.
  bool passed() const { return passed_; }

  /// The call worked nevertheless: the trial says nothing about calls of this kind.
  void refute() const;

 private:
  bool passed_ = true;
  Key kind_;
};

/// Warns, as the operator would, of what is known from its layout function or from a rehearsal.
void warn_again(const Warnings& warnings, const Warnings& but = {});

}  // namespace torch_lazy
