// How numbers of a recorded call follow from learning rates and step counts: by formulas of which
// it is known that the program computes them.
#pragma once

#include "replay/recording.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace torch_lazy {

/// One step of a formula, which computes on a stack of doubles.
struct FormulaStep {
  enum class Operation : int {
    input,     // pushes the input number `operand`
    constant,  // pushes `operand`
    negate,
    add,
    subtract,
    multiply,
    divide,
    power,
    square_root,
  };
  Operation operation = Operation::constant;
  double operand = 0;

  bool operator==(const FormulaStep& other) const;
};

using Formula = std::vector<FormulaStep>;

/// What a formula gives; nothing where the program would raise an error or get another kind of
/// number.
std::optional<double> evaluate(const Formula& formula, const std::vector<double>& inputs);

/// What the numbers of one call may follow from.
struct NumberSources {
  std::vector<double> inputs;  // learning rates and step counts before the call
  std::vector<Formula> formulas;
};

/// For every number, all the formulas that gave it, bit by bit, in all recorded calls; that it is
/// always the same is one of them. While these agree, the number is known. Where they do not, a
/// call has to be recorded once more, and shows which of them are wrong.
class NumberRules {
 public:
  NumberRules(const Recording& recording, NumberSources sources);

  /// Compares the last recorded call with another one that differs in nothing but, perhaps,
  /// numbers. The reason for which these rules do not hold, which are then of no use any more;
  /// empty: they do.
  std::string compare(const Recording& last, const Recording& recording,
                      const NumberSources& sources);

  /// The numbers of a call with these inputs; they stay empty where these are those of the recorded
  /// call. False: they are not known, and the call is to be recorded and compared.
  bool numbers(const Recording& recording, const std::vector<double>& recorded_inputs,
               const std::vector<double>& inputs, std::vector<c10::IValue>& numbers) const;

 private:
  /// Numbers that were equal in each recorded call, and so follow the same formulas.
  struct Followed {
    std::vector<uint32_t> places;  // among the recording's numbers
    std::optional<double> constant;
    std::vector<uint32_t> formulas;  // among those of the sources
  };

  static Followed take_equal(Followed& number, const Recording& recording);
  bool fits(double value, uint32_t place) const;
  std::vector<std::optional<double>> evaluate_all(const std::vector<double>& inputs) const;

  NumberSources sources_;     // of the first recorded call
  std::vector<char> varied_;  // by input: it was another one in some recorded call
  std::vector<c10::SmallVector<at::ScalarType, 2>> dtypes_;  // by number: of its call's operands
  std::vector<Followed> followed_;
};

}  // namespace torch_lazy
