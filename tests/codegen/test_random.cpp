// Random kernels: machine code against the interpreter, to the last bit.
#include "random_kernel.h"

#include <cstdlib>

namespace torch_lazy::codegen {
namespace {

TEST(RandomKernels, LikeTheInterpreter) {
  // More of them: TORCH_LAZY_CODEGEN_SEEDS=5000
  const char* asked = std::getenv("TORCH_LAZY_CODEGEN_SEEDS");
  const unsigned seeds = asked ? static_cast<unsigned>(std::atoi(asked)) : 150;
  const char* first = std::getenv("TORCH_LAZY_CODEGEN_FIRST_SEED");
  const unsigned start = first ? static_cast<unsigned>(std::atoi(first)) : 0;
  for (unsigned seed = start; seed < start + seeds && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Problem problem = random_problem(seed);
    EXPECT_EQ(text(parse(text(problem.kernel))), text(problem.kernel));
    expect_same_everywhere(problem, {}, seed % 3);
  }
}

}  // namespace
}  // namespace torch_lazy::codegen
