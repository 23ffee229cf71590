// The compiler's passes: the program as text before and after each, and what the memory plan makes
// of it. The graphs are recorded ones.
#include "backend_fixture.h"
#include "backends/aten/aten_plan.h"
#include "compile/emit.h"
#include "compile/memory.h"
#include "compile/program.h"

#include <algorithm>

namespace torch_lazy_tests {
namespace {

using torch_lazy::compile::Home;
using torch_lazy::compile::MemoryPlan;
using torch_lazy::compile::plan_memory;
using torch_lazy::compile::Program;
using torch_lazy::compile::text;
namespace compile = torch_lazy::compile;

/// Takes everything, keeps it, and lets PyTorch's kernels run it.
class GraphKeeper : public torch_lazy::Backend {
 public:
  std::string name() const override { return "keeper"; }
  bool takes(const GraphNode&) override { return true; }
  std::shared_ptr<torch_lazy::Executable> compile(std::shared_ptr<const Graph> graph) override {
    last = graph;
    return std::make_shared<torch_lazy::AtenPlan>(graph);
  }

  std::shared_ptr<const Graph> last;
};

class Passes : public ::testing::Test {
 protected:
  void SetUp() override {
    torch_lazy::sync();
    torch_lazy::use_backend(keeper_);
  }

  void TearDown() override {
    run_everything();
    torch_lazy::use_backend(nullptr);
  }

  static torch::Tensor input(at::IntArrayRef sizes) {
    torch::Tensor made = torch::ones(sizes).to(torch::kLazy);
    run_everything();
    return made;
  }

  /// What `record` records, lowered. The tensors that it returns survive.
  Program lowered(const std::function<std::vector<torch::Tensor>()>& record) {
    run_everything();
    keeper_->last = nullptr;
    const std::vector<torch::Tensor> results = record();
    run_everything();
    TORCH_CHECK(keeper_->last, "nothing was recorded, or it was compiled before");
    return compile::lower(keeper_->last);
  }

 private:
  std::shared_ptr<GraphKeeper> keeper_ = std::make_shared<GraphKeeper>();
};

/// Terms in the order in which the stores need them. Which of two operands was made first is up to
/// the C++ compiler.
compile::Piece ordered(const compile::Piece& piece) {
  compile::Piece made;
  made.sizes = piece.sizes;
  made.outer = piece.outer;
  std::vector<int32_t> moved(piece.terms.size(), -1);
  std::function<void(int32_t)> add = [&](int32_t index) {
    if (index < 0 || moved[index] >= 0) {
      return;
    }
    compile::Term term = piece.terms[index];
    std::for_each(std::begin(term.operands), std::end(term.operands), add);
    for (int32_t& operand : term.operands) {
      operand = operand < 0 ? -1 : moved[operand];
    }
    if (term.op == compile::Opcode::argument) {
      made.scalars.push_back(piece.scalars[term.place]);
      term.place = static_cast<int32_t>(made.scalars.size() - 1);
    } else if (compile::has_access(term.op)) {
      compile::Access access = piece.accesses[term.place];
      for (compile::Lookup& lookup : access.lookups) {
        add(lookup.term);
        lookup.term = moved[lookup.term];
      }
      add(access.mask);
      access.mask = access.mask < 0 ? -1 : moved[access.mask];
      term.place = static_cast<int32_t>(made.accesses.size());
      made.accesses.push_back(access);
    }
    moved[index] = static_cast<int32_t>(made.terms.size());
    made.terms.push_back(term);
  };
  for (size_t i = 0; i < piece.terms.size(); ++i) {
    if (compile::is_effect(piece.terms[i].op)) {
      add(static_cast<int32_t>(i));
    }
  }
  return made;
}

/// The text with a line's break in front, as raw strings have it.
std::string lines(Program program) {
  for (compile::Step& step : program.steps) {
    step.piece = ordered(step.piece);
  }
  return "\n" + text(program);
}

using Tensors = std::vector<torch::Tensor>;

// ---- lower

TEST_F(Passes, LowerMakesViewsStrides) {
  torch::Tensor x = input({64, 32});
  torch::Tensor y = input({32, 64});
  Program program = lowered([&] { return Tensors{(x.t() * y).sum(1)}; });
  EXPECT_EQ(lines(program), R"(
step 0: piece outer (32,64) inner ()
  %0 = load f32 slot0 (1,32)
  %1 = load f32 slot1 (64,1)
  %2 = mul f32 %0 %1
  store f32 slot2 (1,32) %2
step 1: piece outer (32) inner (64)
  %0 = load f32 slot2 (1,32)
  %1 = reduce_sum f32 %0
  store f32 slot3 (1,0) %1
)");
}

TEST_F(Passes, LowerCallsWhatItDoesNotKnowAndKeepsProducts) {
  torch::Tensor x = input({8, 16});
  torch::Tensor w = input({4, 16});
  torch::Tensor bias = input({4});
  Program program = lowered([&] { return Tensors{torch::addmm(bias, x, w.t()).logcumsumexp(0)}; });
  EXPECT_EQ(lines(program), R"(
step 0: product slot1 Float[8,16] slot2 Float[16,4] -> slot5
step 1: piece outer (8,4) inner ()
  %0 = load f32 slot5 (4,1)
  %1 = load f32 slot0 (0,1)
  %2 = add f32 %0 %1
  store f32 slot3 (4,1) %2
step 2: call aten::logcumsumexp(slot3 Float[8,4]) -> slot4
)");
}

TEST_F(Passes, LowerMakesProductsOfAttentionThatTheTargetHas) {
  torch::Tensor x = input({2, 64, 3 * 2 * 32});  // as a projection leaves it
  auto heads = [&](int64_t part) {
    return x.narrow(2, part * 64, 64).unflatten(2, {2, 32}).transpose(1, 2);
  };
  const Program program = lowered([&] {
    return Tensors{std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(
        heads(0), heads(1), heads(2), 0.0, /*is_causal=*/true))};
  });
  EXPECT_NE(text(program).find("call aten::_scaled_dot_product"), std::string::npos);
  const compile::Target all{[](const compile::Product&) { return true; }};
  EXPECT_EQ(lines(compile::lower(program.graph, all)), R"(
step 0: product slot0 Float[2,2,64,32] slot0 Float[2,2,32,64] -> slot2
step 1: piece outer (2,2,64) inner (64)
  %0 = index i64 dim 3
  %1 = index i64 dim 2
  %2 = le boolean %0 %1
  %3 = load f32 slot2 (8192,4096,64,1)
  %4 = argument f32 0.176777
  %5 = mul f32 %3 %4
  %6 = constant f32 -inf
  %7 = select f32 %2 %5 %6
  %8 = reduce_fmax f32 %7
  %9 = eq boolean %8 %6
  %10 = constant f32 0
  %11 = select f32 %9 %10 %8
  %12 = sub f32 %7 %11
  %13 = exp f32 %12
  %14 = constant f32 1
  %15 = reduce_sum f32 %13
  %16 = eq boolean %15 %10
  %17 = select f32 %16 %14 %15
  %18 = div f32 %14 %17
  %19 = mul f32 %13 %18
  store f32 slot3 (8192,4096,64,1) %19
step 2: product slot3 Float[2,2,64,64] slot0 Float[2,2,64,32] -> slot1
)");
}

TEST_F(Passes, LowerKeepsConvolutionsThatTheTargetHas) {
  torch::Tensor x = input({2, 16, 8, 8});
  torch::Tensor w = input({32, 16, 3, 3});
  torch::Tensor bias = input({32});
  torch::Tensor gradient = input({2, 32, 4, 4});
  const std::vector<int64_t> two{2, 2}, one{1, 1}, none{0, 0};
  auto both = [&] {
    auto [dx, dw, db] = at::convolution_backward(gradient, x, w, std::vector<int64_t>{32}, two, one,
                                                 one, false, none, 1, {true, true, true});
    return Tensors{at::conv2d(x, w, bias, two, one), dx, dw, db};
  };
  Program program = lowered(both);
  EXPECT_NE(text(program).find("call aten::convolution("), std::string::npos);
  const compile::Target gradients{[](const compile::Product& product) {
    return product.convolution->kind != compile::Convolution::Kind::forward;
  }};
  EXPECT_NE(text(compile::lower(program.graph, gradients)).find("call aten::convolution("),
            std::string::npos);
  const compile::Target all{[](const compile::Product&) { return true; }};
  EXPECT_EQ(lines(compile::lower(program.graph, all)), R"(
step 0: convolution's input gradient slot0 Float[2,32,4,4] slot2 Float[32,16,3,3] -> slot3
step 1: convolution's weight gradient slot0 Float[2,32,4,4] slot1 Float[2,16,8,8] -> slot4
step 2: piece outer (32) inner (2,4,4)
  %0 = load f32 slot0 (16,512,4,1)
  %1 = reduce_sum f32 %0
  store f32 slot5 (1,0,0,0) %1
step 3: convolution slot1 Float[2,16,8,8] slot2 Float[32,16,3,3] -> slot8
step 4: piece outer (2,32,4,4) inner ()
  %0 = load f32 slot8 (512,16,4,1)
  %1 = load f32 slot6 (0,1,0,0)
  %2 = add f32 %0 %1
  store f32 slot7 (512,16,4,1) %2
)");
}

TEST_F(Passes, AFactorOfOneIsNoNumberOfTheCall) {
  torch::Tensor x = input({8, 8});
  EXPECT_EQ(text(lowered([&] { return Tensors{x.add(x, 1)}; })).find("argument"),
            std::string::npos);
  EXPECT_NE(text(lowered([&] { return Tensors{x.add(x, 2)}; })).find("argument"),
            std::string::npos);
}

// ---- share

TEST_F(Passes, ShareComputesOnceWhatIsEqual) {
  torch::Tensor x = input({64, 64});
  torch::Tensor w = input({64, 64});
  Program program = lowered([&] {
    torch::Tensor a = x.exp().mm(w);
    torch::Tensor b = x.exp().mm(w);
    torch::Tensor other = x.exp().mm(w.t());
    return Tensors{a * b * other};
  });
  EXPECT_EQ(lines(program), R"(
step 0: piece outer (64,64) inner ()
  %0 = load f32 slot0 (64,1)
  %1 = exp f32 %0
  store f32 slot1 (64,1) %1
step 1: product slot1 Float[64,64] slot2 Float[64,64] -> slot3
step 2: piece outer (64,64) inner ()
  %0 = load f32 slot0 (64,1)
  %1 = exp f32 %0
  store f32 slot4 (64,1) %1
step 3: product slot4 Float[64,64] slot2 Float[64,64] -> slot5
step 4: piece outer (64,64) inner ()
  %0 = load f32 slot0 (64,1)
  %1 = exp f32 %0
  store f32 slot6 (64,1) %1
step 5: product slot6 Float[64,64] slot2 Float[64,64] -> slot7
step 6: piece outer (64,64) inner ()
  %0 = load f32 slot3 (64,1)
  %1 = load f32 slot5 (64,1)
  %2 = mul f32 %0 %1
  store f32 slot8 (64,1) %2
step 7: piece outer (64,64) inner ()
  %0 = load f32 slot8 (64,1)
  %1 = load f32 slot7 (64,1)
  %2 = mul f32 %0 %1
  store f32 slot9 (64,1) %2
)");
  EXPECT_EQ(lines(compile::share(program)), R"(
step 0: piece outer (64,64) inner ()
  %0 = load f32 slot0 (64,1)
  %1 = exp f32 %0
  store f32 slot1 (64,1) %1
step 1: product slot1 Float[64,64] slot2 Float[64,64] -> slot3
step 2: product slot1 Float[64,64] slot2 Float[64,64] -> slot7
step 3: piece outer (64,64) inner ()
  %0 = load f32 slot3 (64,1)
  %1 = mul f32 %0 %0
  store f32 slot8 (64,1) %1
step 4: piece outer (64,64) inner ()
  %0 = load f32 slot8 (64,1)
  %1 = load f32 slot7 (64,1)
  %2 = mul f32 %0 %1
  store f32 slot9 (64,1) %2
)");
}

TEST_F(Passes, ShareMakesEqualCallsOnce) {
  torch::Tensor x = input({64});
  Program program = lowered([&] {
    torch::Tensor a = x.logcumsumexp(0);
    torch::Tensor b = x.logcumsumexp(0);
    return Tensors{a * b};
  });
  EXPECT_EQ(lines(compile::share(program)), R"(
step 0: call aten::logcumsumexp(slot0 Float[64]) -> slot1
step 1: piece outer (64) inner ()
  %0 = load f32 slot1 (1)
  %1 = mul f32 %0 %0
  store f32 slot3 (1) %1
)");
}

TEST_F(Passes, ShareComputesSumsOnceUnlessAFactorMayChange) {
  torch::Tensor x = input({64});
  torch::Tensor y = input({64});
  Program plain = lowered([&] { return Tensors{(x + y) * (x + y)}; });
  EXPECT_EQ(lines(compile::share(plain)), R"(
step 0: piece outer (64) inner ()
  %0 = load f32 slot0 (1)
  %1 = load f32 slot1 (1)
  %2 = add f32 %0 %1
  store f32 slot2 (1) %2
step 1: piece outer (64) inner ()
  %0 = load f32 slot2 (1)
  %1 = mul f32 %0 %0
  store f32 slot4 (1) %1
)");
  Program scaled = lowered([&] { return Tensors{x.add(y, 3) * x.add(y, 3)}; });
  EXPECT_EQ(text(compile::share(scaled)), text(scaled));
}

TEST_F(Passes, ShareLeavesCallsWithNumbersAndWhatCallsRead) {
  torch::Tensor x = input({8, 8});
  Program numbers = lowered([&] {
    torch::Tensor a = x.renorm(2, 0, 3);  // the numbers may be others in the next run
    torch::Tensor b = x.renorm(2, 0, 3);
    return Tensors{a * b};
  });
  EXPECT_EQ(text(compile::share(numbers)), text(numbers));
  Program read = lowered([&] {
    torch::Tensor a = x.exp();
    torch::Tensor b = x.exp();
    return Tensors{a.neg(), b.logcumsumexp(0)};
  });
  EXPECT_EQ(text(compile::share(read)), text(read));
}

TEST_F(Passes, ShareLeavesWhatSurvivesOrIsOverwritten) {
  torch::Tensor x = input({64});
  Program survives = lowered([&] {
    torch::Tensor a = x.exp();
    torch::Tensor b = x.exp();
    return Tensors{a, b, b.neg()};
  });
  EXPECT_EQ(text(compile::share(survives)), text(survives));
  Program written = lowered([&] {
    torch::Tensor a = x.exp();
    a.neg_();
    torch::Tensor b = x.exp();
    torch::Tensor c = x.exp();  // equal to the one before, which nothing overwrites
    return Tensors{a.sin(), b.cos(), c.tan()};
  });
  EXPECT_EQ(lines(compile::share(written)), R"(
step 0: piece outer (64) inner ()
  %0 = load f32 slot0 (1)
  %1 = exp f32 %0
  store f32 slot1 (1) %1
step 1: piece outer (64) inner ()
  %0 = load f32 slot1 (1)
  %1 = neg f32 %0
  store f32 slot2 (1) %1
step 2: piece outer (64) inner ()
  %0 = load f32 slot0 (1)
  %1 = exp f32 %0
  store f32 slot3 (1) %1
step 3: piece outer (64) inner ()
  %0 = load f32 slot2 (1)
  %1 = sin f32 %0
  store f32 slot5 (1) %1
step 4: piece outer (64) inner ()
  %0 = load f32 slot3 (1)
  %1 = cos f32 %0
  store f32 slot6 (1) %1
step 5: piece outer (64) inner ()
  %0 = load f32 slot3 (1)
  %1 = tan f32 %0
  store f32 slot7 (1) %1
)");
}

TEST_F(Passes, ShareKeepsNothingThatMakesThePeakHigher) {
  torch::Tensor x = input({256, 256});
  auto record = [&](bool needed) {
    torch::Tensor early = x.exp();
    torch::Tensor sum = early.sum();
    torch::Tensor a = x.mm(x);
    torch::Tensor b = a.mm(x);
    torch::Tensor c = a.mm(b) * b;  // three are in use
    torch::Tensor late = x.exp();
    torch::Tensor result = late.mm(c);
    return needed ? Tensors{sum, result * early} : Tensors{sum, result};
  };
  Program again = lowered([&] { return record(false); });
  EXPECT_EQ(text(compile::share(again)), text(again));
  Program there = lowered([&] { return record(true); });
  EXPECT_EQ(compile::share(there).steps.size(), there.steps.size() - 1);
}

// ---- inline fills

TEST_F(Passes, InlineFillsPutsNumbersWhereTheyAreUsed) {
  torch::Tensor x = input({64});
  Program program = lowered([&] {
    torch::Tensor number = torch::full({64}, 3, kLazy);
    return Tensors{number * x};
  });
  EXPECT_EQ(lines(program), R"(
step 0: piece outer (64) inner ()
  %0 = argument i64 number0
  store i64 slot0 (1) %0
step 1: piece outer (64) inner ()
  %0 = load i64 slot0 (1)
  %1 = convert f32 %0
  %2 = load f32 slot1 (1)
  %3 = mul f32 %1 %2
  store f32 slot2 (1) %3
)");
  EXPECT_EQ(lines(compile::inline_fills(program)), R"(
step 0: piece outer (64) inner ()
  %0 = argument i64 number0
  %1 = convert f32 %0
  %2 = load f32 slot1 (1)
  %3 = mul f32 %1 %2
  store f32 slot2 (1) %3
)");
}

TEST_F(Passes, InlineFillsLeavesWhatIsFilledInPart) {
  torch::Tensor x = input({8, 8});
  Program program = lowered([&] {
    torch::Tensor made = torch::zeros({8, 8}, kLazy);
    made.select(0, 3).fill_(1);
    return Tensors{made * x};
  });
  EXPECT_EQ(lines(program), R"(
step 0: piece outer (8,8) inner ()
  %0 = constant f32 0
  store f32 slot0 (8,1) %0
step 1: piece outer (8) inner ()
  %0 = argument f32 number0
  store f32 slot1 (1)+24 %0
step 2: piece outer (8,8) inner ()
  %0 = load f32 slot1 (8,1)
  %1 = load f32 slot2 (8,1)
  %2 = mul f32 %0 %1
  store f32 slot3 (8,1) %2
)");
  EXPECT_EQ(text(compile::inline_fills(program)), text(program));
}

TEST_F(Passes, InlineFillsClearsTheMemoryOfSums) {
  torch::Tensor x = input({3, 8});
  torch::Tensor places = torch::zeros({3}, torch::kLong).to(torch::kLazy);
  Program program = lowered(
      [&] { return Tensors{torch::embedding_dense_backward(x.exp(), places, 5, -1, false)}; });
  EXPECT_EQ(lines(program), R"(
step 0: piece outer (3,8) inner ()
  %0 = load f32 slot0 (8,1)
  %1 = exp f32 %0
  store f32 slot1 (8,1) %1
step 1: piece outer (5,8) inner ()
  %0 = constant f32 0
  store f32 slot4 (8,1) %0
step 2: piece outer (8) inner (3)
  %0 = load f32 slot1 (1,8)
  %1 = load i64 slot2 (0,1)
  %2 = argument i64 0
  %3 = ge boolean %1 %2
  %4 = argument i64 5
  %5 = lt boolean %1 %4
  %6 = bit_and boolean %3 %5
  accumulate f32 slot3 (1,0) at %1*8 where %6 %0
)");
  program = compile::inline_fills(program);
  EXPECT_EQ(lines(compile::fuse(program)), R"(
step 0: clear slot3, piece outer (8) inner (3)
  %0 = load f32 slot0 (1,8)
  %1 = exp f32 %0
  %2 = load i64 slot2 (0,1)
  %3 = argument i64 0
  %4 = ge boolean %2 %3
  %5 = argument i64 5
  %6 = lt boolean %2 %5
  %7 = bit_and boolean %4 %6
  accumulate f32 slot3 (1,0) at %2*8 where %7 %1
)");
}

TEST_F(Passes, InlineFillsKeepsZerosThatAreReadBeforeSums) {
  torch::Tensor x = input({3, 8});
  torch::Tensor places = torch::zeros({3}, torch::kLong).to(torch::kLazy);
  Program program = lowered([&] {
    torch::Tensor zeros = torch::zeros({5, 8}, kLazy);
    torch::Tensor before = zeros.logcumsumexp(0);
    zeros.index_add_(0, places, x);
    return Tensors{zeros, before};
  });
  const std::string all = text(compile::inline_fills(program));
  EXPECT_NE(all.find("store f32 slot0 (8,1)"), std::string::npos) << all;
  EXPECT_EQ(all.find("clear"), std::string::npos) << all;
}

// ---- fuse

TEST_F(Passes, FuseMergesMapsAndReductions) {
  torch::Tensor x = input({64, 64});
  Program program = lowered([&] {
    torch::Tensor y = x.exp();
    return Tensors{y / y.sum(1, true)};
  });
  EXPECT_EQ(lines(program), R"(
step 0: piece outer (64,64) inner ()
  %0 = load f32 slot0 (64,1)
  %1 = exp f32 %0
  store f32 slot1 (64,1) %1
step 1: piece outer (64) inner (64)
  %0 = load f32 slot1 (64,1)
  %1 = reduce_sum f32 %0
  store f32 slot2 (1,0) %1
step 2: piece outer (64,64) inner ()
  %0 = load f32 slot1 (64,1)
  %1 = load f32 slot2 (1,0)
  %2 = div f32 %0 %1
  store f32 slot3 (64,1) %2
)");
  EXPECT_EQ(lines(compile::fuse(program)), R"(
step 0: piece outer (64) inner (64)
  %0 = load f32 slot0 (64,1)
  %1 = exp f32 %0
  %2 = reduce_sum f32 %1
  %3 = div f32 %1 %2
  store f32 slot3 (64,1) %3
)");
}

TEST_F(Passes, FuseStoresWhatACallReads) {
  torch::Tensor x = input({64});
  Program program = lowered([&] {
    torch::Tensor y = x.exp();
    return Tensors{y.logcumsumexp(0), y.neg()};
  });
  EXPECT_EQ(lines(compile::fuse(program)), R"(
step 0: piece outer (64) inner ()
  %0 = load f32 slot0 (1)
  %1 = exp f32 %0
  store f32 slot1 (1) %1
  %3 = neg f32 %1
  store f32 slot3 (1) %3
step 1: call aten::logcumsumexp(slot1 Float[64]) -> slot2
)");
  Program chain = lowered([&] { return Tensors{x.exp().logcumsumexp(0).neg()}; });
  EXPECT_EQ(text(compile::fuse(chain)), text(chain));
}

TEST_F(Passes, FuseKeepsTheOrderThatPositionsAndSumsNeed) {
  torch::Tensor x = input({64, 64});
  torch::Tensor places = torch::zeros({64, 64}, torch::kLong).to(torch::kLazy);
  auto steps = [&](const std::function<std::vector<torch::Tensor>()>& record) {
    return compile::fuse(compile::inline_fills(lowered(record))).steps.size();
  };
  EXPECT_EQ(steps([&] { return Tensors{x.t().sum(), x.max()}; }), 1);
  EXPECT_EQ(steps([&] { return Tensors{x.sum(), x.argmax()}; }), 1);
  EXPECT_EQ(steps([&] { return Tensors{x.t().sum(), x.argmax()}; }), 2);
  auto sums = [&] { return torch::zeros({4}, kLazy).index_put_({places}, x, true); };
  EXPECT_EQ(steps([&] { return Tensors{x.sum(), sums()}; }), 1);
  EXPECT_EQ(steps([&] { return Tensors{x.t().sum(), sums()}; }), 2);
}

TEST_F(Passes, FuseMergesScansWithWhatComesBeforeAndAfter) {
  torch::Tensor x = input({16, 64});
  Program program = lowered([&] { return Tensors{x.neg().cumsum(1).abs()}; });
  EXPECT_EQ(lines(compile::fuse(program)), R"(
step 0: piece outer (16) inner (64)
  %0 = load f32 slot0 (64,1)
  %1 = neg f32 %0
  %2 = convert f64 %1
  %3 = scan_sum f64 %2
  %4 = convert f32 %3
  %5 = abs f32 %4
  store f32 slot3 (64,1) %5
)");
  auto steps = [&](const std::function<std::vector<torch::Tensor>()>& record) {
    return compile::fuse(lowered(record)).steps.size();
  };
  // Scans of one dimension go together; those of two do not, nor do sums in another order.
  EXPECT_EQ(steps([&] { return Tensors{x.cumsum(1), x.cumsum(1).cumsum(1)}; }), 1);
  EXPECT_EQ(steps([&] { return Tensors{x.cumsum(1).cumsum(0)}; }), 2);
  EXPECT_EQ(steps([&] { return Tensors{x.cumsum(1).sum(1)}; }), 1);
  EXPECT_EQ(steps([&] { return Tensors{x.cumsum(1).sum()}; }), 2);
  EXPECT_EQ(steps([&] { return Tensors{x.flip(1).cumsum(1)}; }), 1);
  EXPECT_EQ(steps([&] { return Tensors{x.cumsum(1).flip(1).cumsum(1)}; }), 2);
}

TEST_F(Passes, ScansAreNotSplitAndNotComputedAgain) {
  torch::Tensor x = input({32768});
  Program rows = lowered([&] { return Tensors{x.cumsum(0).sum()}; });
  EXPECT_EQ(text(compile::split_reductions(compile::fuse(rows))), text(compile::fuse(rows)));
  torch::Tensor y = input({64, 64});
  Program kept = compile::fuse(lowered([&] {
    torch::Tensor sums = y.cumsum(1);
    return Tensors{sums.sum(1), sums.mm(y).sin().mul(sums.t())};
  }));
  EXPECT_EQ(text(compile::recompute(kept)), text(kept));
}

TEST_F(Passes, FuseReadsSumsWhenTheyAreComplete) {
  torch::Tensor x = input({16, 8});
  torch::Tensor places = torch::zeros({16, 8}, torch::kLong).to(torch::kLazy);
  Program program = lowered([&] {
    torch::Tensor sums = x.scatter_add(0, places, x.sin());
    return Tensors{sums * x};
  });
  const Program fused = compile::fuse(compile::inline_fills(program));
  // The copy with the sine would be one piece with the sums, but they begin where the copy is.
  ASSERT_EQ(fused.steps.size(), 3) << text(fused);
  EXPECT_NE(text(fused.steps[1].piece).find("accumulate"), std::string::npos) << text(fused);
  EXPECT_NE(text(fused.steps[2].piece).find("mul"), std::string::npos) << text(fused);
}

TEST_F(Passes, FuseMergesAMapAndALongReductionThatThreadsCanShare) {
  auto steps = [&](const std::function<std::vector<torch::Tensor>()>& record) {
    return compile::fuse(lowered(record)).steps.size();
  };
  torch::Tensor x = input({2, 1 << 17});
  EXPECT_EQ(steps([&] { return Tensors{x.exp().sum(1)}; }), 1);
  EXPECT_EQ(steps([&] {
              torch::Tensor y = x.exp();
              return Tensors{y, y.sum()};
            }),
            1);
  torch::Tensor many = input({16, 65537});  // a prime number: no equal parts, but enough rows
  EXPECT_EQ(steps([&] { return Tensors{many.exp().sum(1)}; }), 1);
  torch::Tensor few = input({2, 65537});
  EXPECT_EQ(steps([&] { return Tensors{few.exp().sum(1)}; }), 2);
  EXPECT_EQ(steps([&] { return Tensors{x.exp().argmax(1)}; }), 2);
  // A second pass over the row would have to wait for the first.
  EXPECT_EQ(steps([&] { return Tensors{x / x.sum(1, true)}; }), 2);
  EXPECT_EQ(steps([&] { return Tensors{(x - x.sum(1, true)).sum(1)}; }), 2);
  EXPECT_EQ(steps([&] { return Tensors{x.sum(1), x.amax(1)}; }), 1);
}

// ---- skip copies

TEST_F(Passes, ProductsReadWhatWasCopied) {
  torch::Tensor x = input({64, 32});
  torch::Tensor w = input({64, 48});
  Program program =
      compile::fuse(lowered([&] { return Tensors{x.t().contiguous().mm(w.clone())}; }));
  EXPECT_EQ(lines(program), R"(
step 0: piece outer (32,64) inner ()
  %0 = load f32 slot0 (1,32)
  store f32 slot1 (64,1) %0
step 1: piece outer (64,48) inner ()
  %0 = load f32 slot2 (48,1)
  store f32 slot3 (48,1) %0
step 2: product slot1 Float[32,64] slot3 Float[64,48] -> slot4
)");
  program = compile::skip_copies(program);
  EXPECT_EQ(lines(program), R"(
step 0: product slot0 Float[32,64] slot2 Float[64,48] -> slot4
)");
  EXPECT_EQ(program.steps[0].product.a.layout.strides, (at::DimVector{1, 32}));
  EXPECT_EQ(program.steps[0].product.b.layout.strides, (at::DimVector{48, 1}));
}

TEST_F(Passes, ProductsReadPartsAndBatchesThatWereCopied) {
  torch::Tensor x = input({4, 32, 64});
  torch::Tensor w = input({64, 48});
  // As many dimensions as the copy has for one of the product's.
  Program rows = compile::skip_copies(compile::fuse(lowered(
      [&] { return Tensors{x.slice(2, 16, 48).reshape({128, 32}).mm(w.slice(0, 0, 32))}; })));
  ASSERT_EQ(rows.steps.size(), 1);
  EXPECT_EQ(rows.steps[0].product.a.layout.strides, (at::DimVector{64, 1}));
  EXPECT_EQ(rows.steps[0].product.a.layout.offset, 16);
  Program batches = compile::skip_copies(
      compile::fuse(lowered([&] { return Tensors{x.transpose(1, 2).contiguous().bmm(x)}; })));
  ASSERT_EQ(batches.steps.size(), 1);
  EXPECT_EQ(batches.steps[0].product.a.layout.strides, (at::DimVector{2048, 1, 64}));
}

TEST_F(Passes, SkipCopiesLeavesWhatIsNeeded) {
  torch::Tensor x = input({64, 64});
  torch::Tensor y = input({8, 8, 64});
  const std::function<Tensors()> programs[] = {
      // The copy is a result, or read by a call.
      [&] {
        torch::Tensor copy = x.t().contiguous();
        return Tensors{copy, copy.mm(x)};
      },
      [&] {
        torch::Tensor copy = x.t().contiguous();
        return Tensors{copy.logcumsumexp(0), copy.mm(x)};
      },
      // What was copied, or the copy, is overwritten.
      [&] {
        torch::Tensor z = x.mm(x);
        torch::Tensor copy = z.t().contiguous();
        z.add_(x);
        return Tensors{z, copy.mm(x)};
      },
      [&] {
        torch::Tensor copy = x.t().contiguous();
        torch::Tensor product = copy.mm(x);
        copy.select(0, 1).zero_();
        return Tensors{product, copy};
      },
      // No matrix has such strides, or none that libraries read.
      [&] { return Tensors{y.transpose(0, 1).reshape({64, 64}).mm(x)}; },
      [&] { return Tensors{x.flip(1).mm(x)}; },
      [&] { return Tensors{x.select(0, 0).expand({64, 64}).contiguous().mm(x)}; },
      [&] { return Tensors{y.select(2, 0).contiguous().mm(y.select(1, 0))}; },
  };
  for (const auto& record : programs) {
    const Program program = compile::fuse(lowered(record));
    EXPECT_EQ(text(compile::skip_copies(program)), text(program));
  }
}

TEST_F(Passes, ProductsWriteWhereTheirResultsAreCopied) {
  torch::Tensor x = input({64, 64});
  Program program = compile::skip_copies(
      compile::fuse(lowered([&] { return Tensors{torch::cat({x.mm(x), x.mm(x.t())}, 1)}; })));
  EXPECT_EQ(lines(program), R"(
step 0: product slot0 Float[64,64] slot0 Float[64,64] -> slot3
step 1: product slot0 Float[64,64] slot0 Float[64,64] -> slot3
)");
  for (int64_t part : {0, 1}) {
    EXPECT_EQ(program.steps[part].product.out.layout.strides, (at::DimVector{128, 1}));
    EXPECT_EQ(program.steps[part].product.out.layout.offset, part * 64);
  }
  // Also a result, or read otherwise, or a small part, or not in rows.
  const std::function<Tensors()> others[] = {
      [&] {
        torch::Tensor product = x.mm(x);
        return Tensors{product, torch::cat({product, x}, 1)};
      },
      [&] {
        torch::Tensor product = x.mm(x);
        return Tensors{product.sum(1), torch::cat({product, x}, 1)};
      },
      [&] { return Tensors{torch::cat({x.mm(x), x, x, x, x}, 1)}; },
      [&] { return Tensors{x.mm(x).t().contiguous()}; },
  };
  for (const auto& record : others) {
    const Program other = compile::fuse(lowered(record));
    EXPECT_EQ(text(compile::skip_copies(other)), text(other));
  }
}

// ---- recompute

TEST_F(Passes, RecomputeStoresLess) {
  torch::Tensor x = input({64, 64});
  Program program = lowered([&] {
    torch::Tensor a = x.neg();
    torch::Tensor b = a.abs();
    return Tensors{b.mm(x) * a};
  });
  program = compile::fuse(std::move(program));
  EXPECT_EQ(lines(program), R"(
step 0: piece outer (64,64) inner ()
  %0 = load f32 slot0 (64,1)
  %1 = neg f32 %0
  store f32 slot1 (64,1) %1
  %3 = abs f32 %1
  store f32 slot2 (64,1) %3
step 1: product slot2 Float[64,64] slot0 Float[64,64] -> slot3
step 2: piece outer (64,64) inner ()
  %0 = load f32 slot3 (64,1)
  %1 = load f32 slot1 (64,1)
  %2 = mul f32 %0 %1
  store f32 slot4 (64,1) %2
)");
  EXPECT_EQ(lines(compile::recompute(program)), R"(
step 0: piece outer (64,64) inner ()
  %0 = load f32 slot0 (64,1)
  %1 = neg f32 %0
  %2 = abs f32 %1
  store f32 slot2 (64,1) %2
step 1: product slot2 Float[64,64] slot0 Float[64,64] -> slot3
step 2: piece outer (64,64) inner ()
  %0 = load f32 slot3 (64,1)
  %1 = load f32 slot0 (64,1)
  %2 = neg f32 %1
  %3 = mul f32 %0 %2
  store f32 slot4 (64,1) %3
)");
}

TEST_F(Passes, RecomputeLeavesWhatIsDear) {
  torch::Tensor x = input({64, 64});
  Program program = lowered([&] {
    torch::Tensor a = x.lgamma();
    torch::Tensor b = a.abs();
    return Tensors{b.mm(x) * a};
  });
  program = compile::fuse(std::move(program));
  EXPECT_EQ(program.steps[0].writes.size(), 2u);
  EXPECT_EQ(text(compile::recompute(program)), text(program));
}

TEST_F(Passes, RecomputeReadsNothingThatIsOverwritten) {
  torch::Tensor x = input({64, 64});
  torch::Tensor w = input({64, 64});
  Program program = lowered([&] {
    torch::Tensor a = x.neg();
    torch::Tensor b = a.abs();
    torch::Tensor c = b.mm(w);
    x.copy_(c);
    return Tensors{c.mm(w) * a};
  });
  program = compile::fuse(std::move(program));
  EXPECT_EQ(program.steps[0].writes.size(), 2u);
  EXPECT_EQ(text(compile::recompute(program)), text(program));
}

/// A value that two calls need, the second long after the first.
torch::Tensor sort_twice(const torch::Tensor& x, const std::function<void()>& meanwhile) {
  torch::Tensor a = x.neg();
  torch::Tensor sorted = std::get<0>(a.sort(1));
  meanwhile();
  for (int i = 0; i < 20; ++i) {
    sorted = std::get<0>(sorted.sort(i % 2));
  }
  return sorted + std::get<0>(a.sort(0));
}

TEST_F(Passes, RecomputeMakesLargeValuesAgainForCallsOfLongAfter) {
  torch::Tensor x = input({256, 256});
  const Program before = lowered([&] { return Tensors{sort_twice(x, [] {})}; });
  const Program after = compile::recompute(before);
  ASSERT_EQ(after.steps.size(), before.steps.size() + 1);
  const compile::Step& first = after.steps[0];
  const compile::Step& made = after.steps[after.steps.size() - 3];
  const compile::Step& call = after.steps[after.steps.size() - 2];
  ASSERT_EQ(made.kind, compile::Step::Kind::piece);
  ASSERT_EQ(call.kind, compile::Step::Kind::call);
  EXPECT_EQ(made.reads, first.reads);
  EXPECT_EQ(made.writes[0], after.slots.size() - 1);
  EXPECT_EQ(call.reads[0], made.writes[0]);
  EXPECT_EQ(after.steps[1].reads, first.writes);
  EXPECT_NE(text(after).find("call aten::sort(slot" + std::to_string(made.writes[0]) + " "),
            std::string::npos);
}

TEST_F(Passes, RecomputeKeepsSmallValuesAndThoseWhoseSourceIsOverwrittenForCalls) {
  torch::Tensor small = input({32, 32});
  torch::Tensor x = input({256, 256});
  const Program program =
      lowered([&] { return Tensors{sort_twice(small, [] {}), sort_twice(x, [&] { x.zero_(); })}; });
  EXPECT_EQ(text(compile::recompute(program)), text(program));
}

// ---- split reductions

TEST_F(Passes, SplitReductionsCutsLongRows) {
  torch::Tensor x = input({2, 1 << 16});
  Program program = lowered([&] { return Tensors{x.sum(1)}; });
  EXPECT_EQ(lines(program), R"(
step 0: piece outer (2) inner (65536)
  %0 = load f32 slot0 (65536,1)
  %1 = reduce_sum f32 %0
  store f32 slot1 (1,0) %1
)");
  EXPECT_EQ(lines(compile::split_reductions(program)), R"(
step 0: piece outer (2,16) inner (4096)
  %0 = load f32 slot0 (65536,4096,1)
  %1 = reduce_sum f32 %0
  store f32 slot2 (16,1,0) %1
step 1: piece outer (2) inner (16)
  %0 = load f32 slot2 (16,1)
  %1 = reduce_sum f32 %0
  store f32 slot1 (1,0) %1
)");
}

TEST_F(Passes, SplitReductionsCutsWhatIsFurthestApart) {
  torch::Tensor x = input({512, 512});
  Program program = compile::fuse(lowered([&] { return Tensors{x.t().contiguous().sum()}; }));
  EXPECT_EQ(lines(compile::split_reductions(program)), R"(
step 0: piece outer (64) inner (512,8)
  %0 = load f32 slot0 (4096,1,512)
  %1 = reduce_sum f32 %0
  store f32 slot3 (1,0,0) %1
step 1: piece outer () inner (64)
  %0 = load f32 slot3 (1)
  %1 = reduce_sum f32 %0
  store f32 slot2 (0) %1
)");
}

TEST_F(Passes, SplitReductionsLeavesManyRowsShortRowsAndPositions) {
  torch::Tensor many = input({16, 1 << 14});
  torch::Tensor few = input({2, 1 << 14});
  Program program =
      lowered([&] { return Tensors{many.sum(1), few.slice(1, 1).sum(1), few.argmax(1)}; });
  EXPECT_EQ(text(compile::split_reductions(program)), text(program));
}

// ---- drop dead

TEST_F(Passes, SplitReductionsLeavesSumsInMemory) {
  torch::Tensor x = input({1 << 16});
  torch::Tensor places = torch::zeros({1 << 16}, torch::kLong).to(torch::kLazy);
  Program program =
      lowered([&] { return Tensors{torch::zeros({4}, kLazy).index_add_(0, places, x)}; });
  program = compile::inline_fills(program);
  EXPECT_EQ(text(compile::split_reductions(program)), text(program));
}

TEST_F(Passes, DropDeadTakesAwayPiecesThatStoreNothing) {
  torch::Tensor x = input({8, 8});
  Program program = lowered([&] { return Tensors{x.neg(), x.abs(), x.mm(x), x.logcumsumexp(0)}; });
  EXPECT_EQ(text(compile::drop_dead(program)), text(program));
  std::vector<char> unused(program.slots.size(), 0);
  unused[program.steps[0].writes[0]] = 1;
  drop_stores(program.steps[0].piece, unused);
  find_uses(program, program.steps[0]);
  EXPECT_EQ(lines(program), R"(
step 0: piece outer (8,8) inner ()
step 1: piece outer (8,8) inner ()
  %0 = load f32 slot0 (8,1)
  %1 = abs f32 %0
  store f32 slot2 (8,1) %1
step 2: product slot0 Float[8,8] slot0 Float[8,8] -> slot3
step 3: call aten::logcumsumexp(slot0 Float[8,8]) -> slot4
)");
  EXPECT_EQ(lines(compile::drop_dead(program)), R"(
step 0: piece outer (8,8) inner ()
  %0 = load f32 slot0 (8,1)
  %1 = abs f32 %0
  store f32 slot2 (8,1) %1
step 1: product slot0 Float[8,8] slot0 Float[8,8] -> slot3
step 2: call aten::logcumsumexp(slot0 Float[8,8]) -> slot4
)");
}

// ---- order products

TEST_F(Passes, TheProductThatFreesMemoryGoesFirst) {
  torch::Tensor x = input({8, 8});
  Program program = lowered([&] {
    torch::Tensor g = x.mm(x), h = g.mm(x);
    torch::Tensor first = g.mm(x);  // g is needed by both, h by the second only
    return Tensors{first, h.mm(g)};
  });
  EXPECT_EQ(lines(program), R"(
step 0: product slot0 Float[8,8] slot0 Float[8,8] -> slot1
step 1: product slot1 Float[8,8] slot0 Float[8,8] -> slot2
step 2: product slot1 Float[8,8] slot0 Float[8,8] -> slot3
step 3: product slot2 Float[8,8] slot1 Float[8,8] -> slot4
)");
  EXPECT_EQ(lines(compile::order_products(std::move(program))), R"(
step 0: product slot0 Float[8,8] slot0 Float[8,8] -> slot1
step 1: product slot1 Float[8,8] slot0 Float[8,8] -> slot2
step 2: product slot2 Float[8,8] slot1 Float[8,8] -> slot4
step 3: product slot1 Float[8,8] slot0 Float[8,8] -> slot3
)");
}

// ---- reuse

TEST_F(Passes, ReuseWritesOverWhatIsReadForTheLastTime) {
  torch::Tensor x = input({128, 128});
  Program program = lowered([&] { return Tensors{x.mm(x).neg().mm(x)}; });
  EXPECT_EQ(lines(program), R"(
step 0: product slot0 Float[128,128] slot0 Float[128,128] -> slot1
step 1: piece outer (128,128) inner ()
  %0 = load f32 slot1 (128,1)
  %1 = neg f32 %0
  store f32 slot2 (128,1) %1
step 2: product slot2 Float[128,128] slot0 Float[128,128] -> slot3
)");
  program = compile::reuse(std::move(program));
  EXPECT_EQ(program.slots[2].base, 1);
  EXPECT_TRUE(plan_memory(program).homes[2].in_place);
}

TEST_F(Passes, ReuseLeavesWhatIsNeededOrNotItsOwn) {
  torch::Tensor x = input({128, 128});
  // The product is read again; it is read transposed; it is an input; a call made it; each row is
  // written to where only one of its elements was read.
  for (const auto& record : std::vector<std::function<torch::Tensor()>>{
           [&] {
             torch::Tensor y = x.mm(x);
             return y.neg().mm(y);
           },
           [&] { return x.mm(x).t().contiguous().mm(x); },
           [&] { return x.neg().mm(x); },
           [&] { return x.logcumsumexp(0).neg().mm(x); },
           [&] { return x.mm(x).flip(0).mm(x); },
       }) {
    Program program = compile::reuse(lowered([&] { return Tensors{record()}; }));
    for (const compile::Slot& slot : program.slots) {
      EXPECT_EQ(slot.base, -1) << text(program);
    }
  }
}

/// A value that is overwritten is loaded before, also where only a later store needs it.
TEST_F(Passes, WhatIsOverwrittenIsLoadedFirst) {
  torch::Tensor x = input({128, 128});
  Program program = lowered([&] {
    torch::Tensor a = x.mm(x), n = x.neg();
    return Tensors{n, a.abs() + n};
  });
  compile::Piece piece = compile::fuse(std::move(program)).steps.at(1).piece;
  std::vector<uint32_t> stored;
  uint32_t loaded = 0;
  for (const compile::Term& term : piece.terms) {
    if (term.op == torch_lazy::codegen::Opcode::store) {
      stored.push_back(piece.accesses[term.place].slot);
    } else if (term.op == torch_lazy::codegen::Opcode::load &&
               piece.accesses[term.place].slot != 0) {
      loaded = piece.accesses[term.place].slot;
    }
  }
  ASSERT_EQ(stored.size(), 2U) << text(piece);
  // The first store takes the memory that the second one's value is made of.
  const std::string kernel =
      compile::emit(piece, [&](uint32_t slot) { return slot == stored[0] ? loaded : slot; }).kernel;
  EXPECT_LT(kernel.rfind("= load"), kernel.find("store")) << kernel;
}

// ---- emit

/// Of erf(x), which is dear, later passes over the row need only x + erf(x): that is kept.
TEST_F(Passes, RowsKeepWhatAValueBecomes) {
  torch::Tensor x = input({128, 128});
  Program program = compile::fuse(lowered([&] {
    torch::Tensor y = x + x.erf();
    return Tensors{y - y.sum(-1, /*keepdim=*/true)};
  }));
  ASSERT_EQ(program.steps.size(), 1U) << text(program);
  const std::string kernel =
      compile::emit(program.steps[0].piece, [](uint32_t slot) { return slot; }).kernel;
  size_t loads = 0;
  for (size_t at = kernel.find("= load"); at != std::string::npos;
       at = kernel.find("= load", at + 1)) {
    ++loads;
  }
  EXPECT_EQ(loads, 2U) << kernel;  // of x, and of what was kept
}

// ---- memory

TEST_F(Passes, MemoryInTheArenaIsUsedAgain) {
  torch::Tensor x = input({5, 5});  // 100 bytes: 128 of the arena
  Program program = lowered([&] { return Tensors{x.mm(x).mm(x).mm(x).mm(x)}; });
  EXPECT_EQ(lines(program), R"(
step 0: product slot0 Float[5,5] slot0 Float[5,5] -> slot1
step 1: product slot1 Float[5,5] slot0 Float[5,5] -> slot2
step 2: product slot2 Float[5,5] slot0 Float[5,5] -> slot3
step 3: product slot3 Float[5,5] slot0 Float[5,5] -> slot4
)");
  const MemoryPlan plan = plan_memory(program);
  for (uint32_t slot : {1, 2, 3}) {
    EXPECT_EQ(plan.homes[slot].kind, Home::Kind::arena);
  }
  EXPECT_NE(plan.homes[1].offset, plan.homes[2].offset);  // one is made from the other
  EXPECT_EQ(plan.homes[1].offset, plan.homes[3].offset);
  EXPECT_EQ(plan.homes[4].kind, Home::Kind::own);
  EXPECT_EQ(plan.arena_bytes, 2 * 128);
  EXPECT_EQ(plan.live_bytes, 2 * 128);
}

TEST_F(Passes, MemoryOfLargeValuesIsInBlocks) {
  torch::Tensor x = input({128, 128});  // 64 KiB
  const MemoryPlan plan = plan_memory(lowered([&] { return Tensors{x.mm(x).mm(x).mm(x)}; }));
  EXPECT_EQ(plan.homes[1].kind, Home::Kind::block);
  EXPECT_EQ(plan.homes[2].kind, Home::Kind::block);
  EXPECT_EQ(plan.homes[3].kind, Home::Kind::own);
  EXPECT_EQ(plan.arena_bytes, 0);
  EXPECT_EQ(plan.live_bytes, 2 * 65536);
  EXPECT_EQ(plan.batches[1].done, std::vector<uint32_t>{1});
}

TEST_F(Passes, MemoryIsWrittenInPlace) {
  torch::Tensor x = input({64});
  Program program = lowered([&] { return Tensors{x.neg_()}; });
  EXPECT_EQ(lines(program), R"(
step 0: piece outer (64) inner ()
  %0 = load f32 slot0 (1)
  %1 = neg f32 %0
  store f32 slot1 (1) %1
)");
  ASSERT_EQ(program.slots[1].base, 0);
  const MemoryPlan plan = plan_memory(program);
  EXPECT_TRUE(plan.homes[1].in_place);
  EXPECT_TRUE(plan.homes[1].covered);
  EXPECT_EQ(plan.homes[1].group, 0u);
  EXPECT_EQ(plan.homes[1].kind, Home::Kind::outside);
  EXPECT_EQ(plan.commit, 0u);
}

TEST_F(Passes, MemoryIsNotWrittenInPlaceWhereOtherElementsAreRead) {
  torch::Tensor x = input({64});
  Program program = lowered([&] { return Tensors{x.copy_(x.flip(0))}; });
  program = compile::fuse(std::move(program));
  EXPECT_EQ(lines(program), R"(
step 0: piece outer (64) inner ()
  %0 = load f32 slot0 (-1)+63
  store f32 slot2 (1) %0
)");
  const MemoryPlan plan = plan_memory(program);
  EXPECT_FALSE(plan.homes[2].in_place);
  EXPECT_EQ(plan.homes[2].kind, Home::Kind::own);
  EXPECT_EQ(plan.commit, plan.batches.size());  // nothing from before the run is overwritten
}

TEST_F(Passes, MemoryOfSumsIsThatOfWhatTheyAreAddedTo) {
  torch::Tensor x = input({16, 8});
  torch::Tensor places = torch::zeros({16}, torch::kLong).to(torch::kLazy);
  Program alone = lowered([&] { return Tensors{x.sin().index_add_(0, places, x)}; });
  alone = compile::fuse(alone);
  ASSERT_EQ(alone.steps.size(), 2) << text(alone);
  EXPECT_TRUE(plan_memory(alone).homes[alone.steps[1].writes[0]].in_place);
  Program read = lowered([&] {
    torch::Tensor y = x.sin();
    return Tensors{y.index_add_(0, places, (y.select(0, 0) * 2).expand({16, 8}))};
  });
  read = compile::fuse(read);
  ASSERT_EQ(read.steps.size(), 2) << text(read);
  EXPECT_NE(text(read.steps[1].piece).find("load f32 slot1"), std::string::npos) << text(read);
  const Home home = plan_memory(read).homes[read.steps[1].writes[0]];
  EXPECT_FALSE(home.in_place);  // what it reads may have been added to
  EXPECT_FALSE(home.covered);   // so it begins with a copy
}

TEST_F(Passes, MemoryFromBeforeTheRunIsOverwrittenWhenNothingCanFail) {
  torch::Tensor x = input({64});
  torch::Tensor from = input({64});
  torch::Tensor index = torch::arange(64).to(torch::kLazy);
  Program before = lowered([&] {
    torch::Tensor taken = from.index_select(0, index);  // an index may be out of range
    return Tensors{x.mul_(taken)};
  });
  ASSERT_EQ(before.steps.size(), 2u);
  const uint32_t last = before.steps[1].writes[0];
  ASSERT_GE(before.slots[last].base, 0);
  MemoryPlan plan = plan_memory(before);
  EXPECT_EQ(plan.last_fallible, 1u);
  EXPECT_EQ(plan.commit, 1u);
  EXPECT_TRUE(plan.homes[last].in_place);

  Program after = lowered([&] {
    x.neg_();
    return Tensors{x.index_select(0, index)};
  });
  ASSERT_EQ(after.steps.size(), 2u);
  const uint32_t first = after.steps[0].writes[0];
  ASSERT_GE(after.slots[first].base, 0);
  plan = plan_memory(after);
  EXPECT_EQ(plan.last_fallible, 2u);
  EXPECT_EQ(plan.commit, plan.batches.size());
  EXPECT_FALSE(plan.homes[first].in_place);
  EXPECT_EQ(plan.homes[first].kind, Home::Kind::own);
}

}  // namespace
}  // namespace torch_lazy_tests
