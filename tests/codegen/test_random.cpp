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

// LLVM has a verifier of its own, which takes too long to run always; showing code runs it.
TEST(RandomKernels, AreValidIr) {
  for (unsigned seed = 0; seed < 40; ++seed) {
    for (const char* target : {"x86-64", "x86-64-v3", "x86-64-v4"}) {
      char* error = nullptr;
      char* shown =
          tlc_show(opened(target), text(random_problem(seed).kernel).c_str(), "ir", &error);
      EXPECT_NE(shown, nullptr) << "seed " << seed << " on " << target << ": " << error;
      tlc_free(shown);
      tlc_free(error);
    }
  }
}

}  // namespace
}  // namespace torch_lazy::codegen
