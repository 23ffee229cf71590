// How numbers of a recorded call follow from learning rates and step counts of optimizers, by what
// recorded calls have shown.
#pragma once

#include "replay/optimizer_states.h"
#include "replay/recording.h"

#include <optional>
#include <string>
#include <vector>

namespace torch_lazy {

/// One recorded call of a function with optimizers: what they had before it, and how many steps
/// each count went on in it.
struct OptimizerCall {
  OptimizerNumbers before;
  std::vector<int64_t> advance;
};

/// For every number, all the formulas that gave it, bit by bit, in all recorded calls; that it is
/// always the same is one of them. While these agree, the number is known. Where they do not, a
/// call has to be recorded once more, and shows which of them are wrong.
class NumberRules {
 public:
  NumberRules(const Recording& recording, OptimizerCall call);

  /// Compares the last recorded call with another one that differs in nothing but, perhaps,
  /// numbers. The reason for which these rules do not hold, which are then of no use any more;
  /// empty: they do.
  std::string compare(const Recording& last, const Recording& recording, const OptimizerCall& call);

  enum class Answer {
    known,
    unsure,  // not seen yet: to be recorded and compared
    other,   // another kind of call
  };

  /// The numbers of a call. They stay empty where they are those of the recording.
  Answer numbers(const Recording& recording, const OptimizerNumbers& now,
                 std::vector<c10::IValue>& numbers);

  const std::vector<int64_t>& advance() const { return call_.advance; }

 private:
  /// Parameters of one group whose counts are equal and go on together.
  struct Together {
    uint32_t group = 0;
    uint32_t first = 0;  // step count
    int64_t advance = 0;
  };

  /// Numbers that were equal in each recorded call, and so follow the same formulas.
  struct Followed {
    std::vector<uint32_t> places;  // among the recording's numbers
    std::optional<double> constant;
    std::vector<uint32_t> formulas;  // places in `values_`
  };

  static Followed take_equal(Followed& number, const Recording& recording);
  bool still_together(const OptimizerNumbers& now) const;
  void evaluate(const OptimizerNumbers& now);

  OptimizerCall call_;             // the first that was recorded
  std::vector<char> rate_varied_;  // by group: recorded calls had other rates
  std::vector<Together> together_;
  std::vector<uint32_t> together_of_;  // by step count
  std::vector<Followed> followed_;
  std::vector<double> values_;  // what all formulas give for a call
};

}  // namespace torch_lazy
