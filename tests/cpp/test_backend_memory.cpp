// A backend with memory of its own: data is moved where it is needed, and not more often.
#include "backend_fixture.h"

#include <cstdlib>

namespace torch_lazy_tests {
namespace {

/// Keeps data elsewhere and inverted, so that data which was not moved is noticed.
class FarBackend : public TestBackend {
 public:
  std::string name() const override { return "far"; }
  std::string device_type() const override { return "FAR"; }
  at::Device memory() const override { return at::Device(at::kXLA, 0); }

  c10::Storage upload(const c10::Storage& real) override {
    ++uploads;
    return invert(real, memory());
  }

  c10::Storage download(const c10::Storage& own) override {
    ++downloads;
    EXPECT_EQ(own.device(), memory());
    return invert(own, at::Device(at::kCPU));
  }

  std::shared_ptr<torch_lazy::Executable> compile(std::shared_ptr<const Graph> graph) override {
    return std::make_shared<FarExecutable>(*this, TestBackend::compile(graph), graph);
  }

  static c10::Storage invert(const c10::Storage& from, at::Device device) {
    auto* bytes = new std::vector<unsigned char>(from.nbytes());
    for (size_t i = 0; i < bytes->size(); ++i) {
      (*bytes)[i] = ~static_cast<const unsigned char*>(from.data())[i];
    }
    c10::DataPtr pointer(
        bytes->data(), bytes,
        [](void* context) { delete static_cast<std::vector<unsigned char>*>(context); }, device);
    return c10::Storage(c10::Storage::use_byte_size_t(), from.nbytes(), std::move(pointer));
  }

  struct FarExecutable : torch_lazy::Executable {
    FarExecutable(FarBackend& owner, std::shared_ptr<Executable> inner,
                  std::shared_ptr<const Graph> graph)
        : backend(owner), inner(std::move(inner)), graph(std::move(graph)) {}

    void run(RunState& run) override {
      for (c10::Storage& slot : run.slots) {
        if (slot) {
          EXPECT_EQ(slot.device(), backend.memory());
          slot = invert(slot, at::Device(at::kCPU));
        }
      }
      inner->run(run);
      for (c10::Storage& slot : run.slots) {
        if (slot) {
          slot = invert(slot, backend.memory());
        }
      }
    }

    FarBackend& backend;
    std::shared_ptr<torch_lazy::Executable> inner;
    std::shared_ptr<const Graph> graph;
  };

  int uploads = 0;
  int downloads = 0;
};

void use_far_backend() {
  auto far = std::make_shared<FarBackend>();
  far->take_writes();
  torch::Tensor made_before = torch::ones({3}, kLazy) * 2;
  torch_lazy::sync();
  torch_lazy::use_backend(far);
  EXPECT_EQ(torch_lazy::backend().device_type(), "FAR");

  torch::Tensor plain = torch::ones({3});
  torch::Tensor shared = torch_lazy::from_real(plain);
  torch::Tensor y = ((made_before + shared).exp() * 2 + made_before).tanh();
  torch::Tensor e = ((torch::full({3}, 2.f) + 1).exp() * 2 + 2).tanh();
  EXPECT_TRUE(torch::equal(y.cpu(), e));
  shared.add_(made_before);
  torch_lazy::sync();
  EXPECT_TRUE(torch::equal(plain, torch::full({3}, 3.f)));  // shared memory stays shared

  // What the backend has stays with it from run to run.
  torch::Tensor weight = torch::ones({3}, kLazy) + 0;
  torch_lazy::sync();
  weight.add_(made_before);
  torch_lazy::sync();
  const int uploads = far->uploads;
  const int downloads = far->downloads;
  for (int i = 0; i < 5; ++i) {
    weight.add_(made_before);
    torch_lazy::sync();
  }
  EXPECT_EQ(far->uploads, uploads);
  EXPECT_EQ(far->downloads, downloads);
  EXPECT_TRUE(torch::equal(weight.cpu(), torch::full({3}, 13.f)));
  EXPECT_EQ(far->downloads, downloads + 1);
  EXPECT_TRUE(torch::equal(made_before.cpu(), torch::full({3}, 2.f)));
  EXPECT_TRUE(torch::equal((weight.exp() + 1).cpu(), torch::full({3}, 13.f).exp() + 1));

  EXPECT_CONTAINS(message_of([] { torch_lazy::use_backend(nullptr); }), "cannot be replaced");
}

// In a process of its own: such a backend stays.
TEST(FarBackendDeathTest, DataIsMovedWhereItIsNeeded) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        use_far_backend();
        std::_Exit(::testing::Test::HasFailure() ? 1 : 0);
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace torch_lazy_tests
