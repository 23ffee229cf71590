// PyTorch makes the numbers of bernoulli_ one by one, which is most of what dropout costs. Here
// they are made many at a time, with the same bits.
#include "runtime/draw.h"

#include "runtime/mersenne.h"
#include "runtime/real_tensor.h"
#include <torch_lazy/backend.h>

#include <ATen/CPUGeneratorImpl.h>

#include <bit>
#include <cstring>
#include <mutex>

namespace torch_lazy {
namespace {

using torch::jit::Stack;

/// For fewer the generator's state, which is copied twice, would be most of the work.
constexpr int64_t kLeast = 128;

/// Without a test whether PyTorch draws the same.
bool draw_bernoulli(const at::Tensor& self, double probability, at::CPUGeneratorImpl& generator) {
  std::lock_guard lock(generator.mutex_);
  at::mt19937 engine = generator.engine();
  at::mt19937_data_pod data = engine.data();
  // What is left counts the word that makes a new state.
  Mersenne words(data.state_, Mersenne::kWords + 1 - data.left_);
  auto fill = [&]<typename Number>(Number one) {
    words.draw(probability, one, static_cast<Number*>(self.mutable_data_ptr()), self.numel());
  };
  switch (self.scalar_type()) {
    case at::kFloat:
      fill(std::bit_cast<uint32_t>(1.0f));
      break;
    case at::kDouble:
      fill(std::bit_cast<uint64_t>(1.0));
      break;
    case at::kHalf:
      fill(c10::Half(1.0f).x);
      break;
    case at::kBFloat16:
      fill(c10::BFloat16(1.0f).x);
      break;
    case at::kBool:
    case at::kByte:
      fill(uint8_t{1});
      break;
    default:
      return false;
  }
  data.state_ = words.state();
  data.next_ = static_cast<uint32_t>(words.used());
  data.left_ = static_cast<int>(Mersenne::kWords + 1 - words.used());
  engine.set_data(data);
  generator.set_engine(engine);
  return true;
}

/// Whether PyTorch's numbers are these. Some builds have another source of them for some
/// processors.
bool is_as_in_eager(const OperatorInfo& op) {
  constexpr int64_t count = 1000;
  const double probability = 0.3;
  Layout layout;
  layout.sizes = {count};
  layout.strides = {1};
  layout.dtype = at::kFloat;
  const auto nbytes = static_cast<int64_t>(count * sizeof(float));
  const at::Tensor theirs = real_tensor(allocate(nbytes), layout);
  const at::Tensor ours = real_tensor(allocate(nbytes), layout);
  at::Generator one = at::detail::createCPUGenerator(17), other = one.clone();
  Stack stack{theirs, probability, one};
  op.handle.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
  draw_bernoulli(ours, probability, *at::check_generator<at::CPUGeneratorImpl>(other));
  const auto state = [](const at::Generator& generator) {
    return at::check_generator<at::CPUGeneratorImpl>(generator)->engine().data();
  };
  const at::mt19937_data_pod after = state(one), found = state(other);
  return std::memcmp(theirs.const_data_ptr(), ours.const_data_ptr(), nbytes) == 0 &&
         after.state_ == found.state_ && after.left_ == found.left_ && after.next_ == found.next_;
}

bool try_bernoulli(const OperatorInfo& op, const Stack& arguments) {
  if (op.name != "aten::bernoulli_.float") {
    return false;
  }
  const at::Tensor& self = arguments[0].toTensor();
  const double probability = arguments[1].toDouble();
  if (!self.is_cpu() || !self.is_contiguous() || self.numel() < kLeast ||
      !(probability >= 0 && probability <= 1)) {
    return false;
  }
  static const bool as_in_eager = is_as_in_eager(op);
  if (!as_in_eager) {
    return false;
  }
  auto* generator = at::get_generator_or_default<at::CPUGeneratorImpl>(
      arguments[2].toOptional<at::Generator>(), at::detail::getDefaultCPUGenerator());
  return draw_bernoulli(self, probability, *generator);
}

}  // namespace

void draw(const OperatorInfo& op, Stack& arguments) {
  BelowEverything below;
  if (!try_bernoulli(op, arguments)) {
    op.handle.redispatchBoxed(c10::DispatchKeySet(real_key()), &arguments);
  }
}

}  // namespace torch_lazy
