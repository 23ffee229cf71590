// From at::Tensor to LazyTensor and back, and the names of devices. Names carry the numbers of the
// behaviours they prove.
#include <torch_lazy/bridge.h>
#include <torch_lazy/device.h>
#include <torch_lazy/torch_lazy.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <sstream>

namespace {

using torch_lazy::BackendDevice;
using torch_lazy::IrValue;
using torch_lazy::LazyTensor;
using namespace torch_lazy::bridge;

const auto kLazy = torch::TensorOptions().device(torch::kLazy);
const at::Device kDevice{at::kLazy, 0};

template <typename Function>
std::string error_of(Function function) {
  try {
    function();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

TEST(Bridge, B104_TryGetIsAbsentForEagerTensors) {
  EXPECT_FALSE(try_get(torch::ones({2})));
  EXPECT_FALSE(try_get(torch::Tensor()));
  EXPECT_TRUE(try_get(torch::ones({2}, kLazy)));
}

TEST(Bridge, B104_GetRefusesEagerTensors) {
  EXPECT_NE(error_of([] { get(torch::ones({2})); }).find("not a lazy tensor"), std::string::npos);
  EXPECT_NE(error_of([] { get(torch::Tensor()); }).find("not a lazy tensor"), std::string::npos);
  torch::Tensor x = torch::ones({2}, kLazy);
  EXPECT_EQ(get(x).id(), torch_lazy::tensor_id(x));
  EXPECT_EQ(get_all({x, x.t()}).size(), 2u);
  EXPECT_NE(error_of([&] { get_all({x, torch::ones({2})}); }), "no error");
}

TEST(Bridge, B105_GetOrCreateWrapsEagerTensors) {
  torch::Tensor plain = torch::ones({2});
  LazyTensor made = get_or_create(plain, kDevice);
  EXPECT_TRUE(torch::equal(made.to_tensor(true), plain));
  torch::Tensor x = torch::ones({2}, kLazy);
  EXPECT_EQ(get_or_create(x, kDevice).id(), get(x).id());
}

TEST(Bridge, B105_UndefinedIsAbsent) {
  EXPECT_FALSE(get_or_create(torch::Tensor(), kDevice));
  EXPECT_FALSE(get_or_create(std::nullopt, kDevice));
  torch::Tensor x = torch::randn({2, 3});
  torch::Tensor weight = torch::randn({4, 3});
  torch::Tensor y = torch::linear(x.to(kDevice), weight.to(kDevice));  // an undefined bias
  EXPECT_TRUE(torch::allclose(y.cpu(), torch::linear(x, weight)));
}

TEST(Bridge, B106_NumbersAndTensorsWithoutDimensionsAreAccepted) {
  torch::Tensor zero_dim = torch::tensor(2.5);
  EXPECT_TRUE(torch::equal(get_or_create_number(zero_dim, kDevice).to_tensor(true), zero_dim));
  torch::Tensor wrapped = at::scalar_to_tensor(3);
  wrapped.unsafeGetTensorImpl()->set_wrapped_number(true);
  EXPECT_EQ(get_or_create_number(wrapped, kDevice).to_tensor(true).item<int>(), 3);
  torch::Tensor x = torch::ones({2}, kLazy);
  EXPECT_EQ(get_or_create_number(x, kDevice).id(), get(x).id());
  EXPECT_NE(
      error_of([] { get_or_create_number(torch::ones({1}), kDevice); }).find("not a lazy tensor"),
      std::string::npos);

  EXPECT_TRUE(torch::equal((zero_dim + x).cpu(), torch::full({2}, 3.5)));
  EXPECT_NE(error_of([&] { torch::add(x, torch::ones({2})); }).find("not a lazy tensor"),
            std::string::npos);
}

TEST(Bridge, B107_AListOfTensorsIsPartOfOneNode) {
  torch::Tensor x = torch::randn({2, 3}).to(kDevice);
  torch::Tensor y = torch::randn({2, 3}).to(kDevice);
  torch_lazy::sync();
  std::vector<IrValue> values = ir_values({x, y});
  torch::Tensor both = torch::cat({x, y});
  EXPECT_EQ(torch_lazy::pending_nodes(), 1);
  EXPECT_EQ(get(both).ir_value().op(), "aten::cat");
  EXPECT_EQ(get(both).ir_value().operands(), values);
}

TEST(Bridge, B108_EagerToLazyCopies) {
  torch::Tensor source = torch::ones({3});
  torch::Tensor x = source.to(kDevice);
  torch::Tensor y = to_lazy(source, {}, kDevice);
  LazyTensor z = LazyTensor::create(source, kDevice);
  source.add_(1);
  for (const torch::Tensor& tensor : {x, y, z.tensor()}) {
    EXPECT_TRUE(torch::equal(tensor.cpu(), torch::ones({3})));
  }
}

TEST(Bridge, B108_EagerToLazyTakesDtypeAndFormat) {
  torch::Tensor image = torch::randn({1, 2, 3, 3});
  torch::Tensor x = to_lazy(
      image, at::TensorOptions(at::kDouble).memory_format(at::MemoryFormat::ChannelsLast), kDevice);
  EXPECT_EQ(x.scalar_type(), at::kDouble);
  EXPECT_EQ(x.strides(), image.contiguous(at::MemoryFormat::ChannelsLast).strides());
  EXPECT_TRUE(torch::equal(x.cpu(), image.to(at::kDouble)));
  EXPECT_NE(error_of([&] { to_lazy(x, {}, kDevice); }), "no error");
}

TEST(Bridge, B109_ViewsAlias) {
  torch::Tensor x = torch::zeros({2, 3}, kLazy);
  x.select(0, 1).add_(1);
  EXPECT_EQ(x.sum().item<float>(), 3);
  torch::Tensor alias = to_aten(get(x));
  EXPECT_TRUE(alias.is_alias_of(x));
  alias.add_(1);
  EXPECT_EQ(x.sum().item<float>(), 9);
}

TEST(Bridge, B110_SizesOfDataDependentResultsAreSymbolicSizes) {
  torch::Tensor x = torch::tensor({1., 0., 2., 0., 3.}).to(kDevice);
  c10::SymInt found = x.nonzero().sym_size(0);
  torch::Tensor head = torch::narrow_copy_symint(x, 0, 0, found);
  EXPECT_TRUE(torch::equal(head.cpu(), torch::tensor({1., 0., 2.})));
}

TEST(Bridge, ToAtenAndBack) {
  EXPECT_FALSE(to_aten(LazyTensor()).defined());
  torch::Tensor x = torch::randn({4, 5}).to(kDevice).requires_grad_();
  torch::Tensor alias = to_aten(get(x.t()));
  EXPECT_EQ(alias.strides(), x.t().strides());
  EXPECT_FALSE(alias.requires_grad());
  EXPECT_EQ(get(alias).id(), get(x).id());
}

TEST(Bridge, SeveralResultsAsATuple) {
  torch::Tensor x = torch::randn({4, 5}).to(kDevice);
  torch::Tensor largest = std::get<0>(x.max(0));
  auto [values, indices] = to_aten_tuple<2>(get(x).make_output_tensors(get(largest).ir_value()));
  EXPECT_TRUE(torch::equal(x.gather(0, indices.unsqueeze(0)).squeeze(0).cpu(), values.cpu()));
  EXPECT_THROW(to_aten_tuple<2>(get_all({x})), std::out_of_range);
}

TEST(BackendDevices, HaveATypeAndANumber) {
  BackendDevice device(at::kCUDA, 3);
  EXPECT_EQ(device.type, at::kCUDA);
  EXPECT_EQ(device.ordinal, 3);
  EXPECT_EQ(BackendDevice().type, torch_lazy::real_device().type());
  EXPECT_EQ(BackendDevice().ordinal, 0);
}

TEST(BackendDevices, CompareByTypeThenNumber) {
  EXPECT_EQ(BackendDevice(at::kCPU, 1), BackendDevice(at::kCPU, 1));
  EXPECT_NE(BackendDevice(at::kCPU, 1), BackendDevice(at::kCPU, 0));
  EXPECT_NE(BackendDevice(at::kCPU, 1), BackendDevice(at::kCUDA, 1));
  EXPECT_LT(BackendDevice(at::kCPU, 1), BackendDevice(at::kCPU, 2));
  EXPECT_LT(BackendDevice(at::kCPU, 2), BackendDevice(at::kCUDA, 0));
  EXPECT_FALSE(BackendDevice(at::kCPU, 2) < BackendDevice(at::kCPU, 2));
}

TEST(BackendDevices, PrintAndParse) {
  std::ostringstream out;
  out << BackendDevice(at::kCPU, 0) << " " << BackendDevice(at::kCUDA, 12);
  EXPECT_EQ(out.str(), "CPU0 CUDA12");
  EXPECT_EQ(BackendDevice::parse("CPU0"), BackendDevice(at::kCPU, 0));
  EXPECT_EQ(BackendDevice::parse("CUDA12"), BackendDevice(at::kCUDA, 12));
  for (const char* wrong : {"", "CPU", "CPU-1", "CPU0x", "lazy:0", "cpu0"}) {
    EXPECT_NE(error_of([&] { BackendDevice::parse(wrong); }), "no error") << wrong;
  }
}

TEST(BackendDevices, ConvertToAndFromAten) {
  EXPECT_EQ(torch_lazy::to_backend_device(at::Device("lazy:2")).ordinal, 2);
  EXPECT_EQ(torch_lazy::to_backend_device(at::Device("lazy")).ordinal, 0);
  EXPECT_NE(error_of([] { torch_lazy::to_backend_device(at::Device("cpu")); }), "no error");
  EXPECT_EQ(torch_lazy::to_aten_device(BackendDevice(at::kCPU, 1)), at::Device("lazy:1"));
}

TEST(BackendDevices, AreFoundAmongArguments) {
  using torch_lazy::find_backend_device;
  torch::Tensor plain = torch::ones({1});
  torch::Tensor lazy = torch::ones({1}, kLazy);
  EXPECT_EQ(find_backend_device(plain), std::nullopt);
  EXPECT_EQ(find_backend_device(torch::Tensor()), std::nullopt);
  EXPECT_EQ(find_backend_device(lazy), BackendDevice());
  EXPECT_EQ(find_backend_device(at::TensorList({plain, lazy})), BackendDevice());
  EXPECT_EQ(find_backend_device(std::optional<at::Device>()), std::nullopt);
  EXPECT_EQ(find_backend_device(std::optional<at::Device>(kDevice)), BackendDevice());
  EXPECT_EQ(find_backend_device(plain, plain), std::nullopt);
  EXPECT_EQ(find_backend_device(plain, std::optional<at::Device>(kDevice), lazy), BackendDevice());
}

}  // namespace
