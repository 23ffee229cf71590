// Layout functions against the CPU: each promises the sizes, strides, dtype and offset that eager
// returns.
#include "capture/layouts/registry.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>

#include <sstream>

namespace torch_lazy {
namespace {

using c10::IValue;
using c10::Stack;

at::Tensor meta_copy(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.unsafeGetTensorImpl()->is_wrapped_number()) return tensor;
  at::Tensor storage = at::empty({static_cast<int64_t>(tensor.storage().nbytes())},
                                 at::TensorOptions(at::kMeta).dtype(at::kByte));
  at::Tensor meta = at::empty({0}, tensor.options().device(at::kMeta));
  meta.set_(storage.storage(), tensor.storage_offset(), tensor.sizes(), tensor.strides());
  return meta;
}

IValue meta_copy(const IValue& value) {
  if (value.isTensor()) return meta_copy(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> copies;
    for (const at::Tensor& tensor : value.toTensorVector()) copies.push_back(meta_copy(tensor));
    return copies;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> copies;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      copies.push_back(tensor ? std::make_optional(meta_copy(*tensor)) : std::nullopt);
    }
    return copies;
  }
  return value;
}

std::string described(const at::Tensor& tensor) {
  std::ostringstream text;
  if (!tensor.defined()) return "none; ";
  text << tensor.scalar_type() << tensor.sizes() << " strides " << tensor.strides() << " offset "
       << tensor.storage_offset() << "; ";
  return text.str();
}

std::string described(const Stack& results) {
  std::string text;
  for (const IValue& result : results) {
    if (result.isTensor()) text += described(result.toTensor());
    if (result.isTensorList()) {
      for (const at::Tensor& tensor : result.toTensorVector()) text += described(tensor);
    }
  }
  return text;
}

Stack promised(const c10::OperatorHandle& op, const Stack& arguments) {
  const c10::KernelFunction* kernel = LayoutRegistry::instance().find(op.operator_name());
  TORCH_CHECK(kernel != nullptr, "no layout function for ", op.operator_name());
  Stack stack;
  for (const IValue& argument : arguments) stack.push_back(meta_copy(argument));
  kernel->callBoxed(op, c10::DispatchKeySet(c10::DispatchKey::Meta), &stack);
  return stack;
}

// `arguments` may stop before the first default.
template <class... Arguments>
void expect_exact(const char* name, const char* overload, Arguments&&... arguments) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
  Stack stack{IValue(std::forward<Arguments>(arguments))...};
  for (size_t i = stack.size(); i < op.schema().arguments().size(); ++i) {
    stack.push_back(op.schema().arguments()[i].default_value().value_or(IValue()));
  }
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  const std::string layout = described(promised(op, stack));
  op.callBoxed(&stack);
  EXPECT_EQ(layout, described(stack)) << name << "." << overload;
}

using Ints = std::vector<int64_t>;
const IValue none;

at::Tensor image() {
  return at::randn({2, 4, 6, 8});
}
at::Tensor channels_last_image() {
  return image().contiguous(at::MemoryFormat::ChannelsLast);
}
at::Tensor transposed() {
  return at::randn({5, 3}).t();
}
at::Tensor every_other() {
  return at::randn({4, 10}).slice(1, 1, 10, 2);
}

TEST(Layouts, GeneratedKernelsAreThere) {
  EXPECT_GT(LayoutRegistry::instance().entries().size(), 1000u);
  expect_exact("aten::add", "Tensor", transposed(), transposed(), 1);
  expect_exact("aten::add_", "Tensor", transposed(), at::ones({}, at::kFloat), 1);
  expect_exact("aten::mm", "", transposed(), at::randn({5, 7}));
  expect_exact("aten::mm", "out", transposed(), at::randn({5, 7}), at::empty({3, 7}));
  expect_exact("aten::sum", "dim_IntList", image(), Ints{1, 2}, true, none);
  expect_exact("aten::gelu", "", channels_last_image());
}

TEST(Layouts, UnknownOperatorsHaveNone) {
  EXPECT_EQ(LayoutRegistry::instance().find({"aten::nonzero", ""}), nullptr);
  EXPECT_EQ(LayoutRegistry::instance().find({"nobody::has_this", ""}), nullptr);
}

TEST(Layouts, CopiesKeepDenseStridesAndPackTheRest) {
  for (const at::Tensor& tensor : {transposed(), every_other(), channels_last_image(),
                                   at::randn({3, 1}).expand({3, 4}), at::randn({})}) {
    expect_exact("aten::clone", "", tensor);
    expect_exact("aten::clone", "", tensor, static_cast<int64_t>(at::MemoryFormat::Contiguous));
    expect_exact("aten::_to_copy", "", tensor, at::kHalf);
    expect_exact("aten::zeros_like", "", tensor);
    expect_exact("aten::full_like", "", tensor, 3);
  }
}

TEST(Layouts, FactoriesInferTheirDtype) {
  expect_exact("aten::zeros", "", Ints{2, 3});
  expect_exact("aten::full", "", Ints{2, 3}, true);
  expect_exact("aten::full", "", Ints{2, 3}, 1);
  expect_exact("aten::full", "", Ints{2, 3}, 1.5);
  expect_exact("aten::arange", "start_step", 1, 10, 3);
  expect_exact("aten::arange", "", 2.5);
  expect_exact("aten::eye", "m", 3, 4);
  expect_exact("aten::tril_indices", "", 4, 5, 1, at::kLong);
  expect_exact("aten::linspace", "", 0.0, 1.0, 7);
}

TEST(Layouts, ElementwiseRules) {
  expect_exact("aten::abs", "", transposed());
  expect_exact("aten::abs", "", at::randn({3, 4}, at::kComplexFloat).t());
  expect_exact("aten::mul", "Scalar", at::ones({3}, at::kLong), 1.5);
  expect_exact("aten::div", "Scalar", at::ones({3}, at::kLong), 2);
  expect_exact("aten::relu", "", channels_last_image());
  expect_exact("aten::relu_", "", transposed());
  expect_exact("aten::logical_and", "", transposed(), at::ones({3, 5}, at::kInt));
  expect_exact("aten::where", "self", transposed() > 0, transposed(), at::ones({5}, at::kDouble));
  expect_exact("aten::masked_fill", "Scalar", transposed(), at::ones({5}, at::kBool), 1);
  expect_exact("aten::masked_fill_", "Scalar", transposed(), at::ones({5}, at::kBool), 1);
}

TEST(Layouts, Reductions) {
  expect_exact("aten::var", "correction", image(), Ints{1, 3}, 1, true);
  expect_exact("aten::std", "correction", image(), Ints{-1});
  expect_exact("aten::var_mean", "correction", image(), Ints{0, 2, 3});
  expect_exact("aten::max", "", image());
  expect_exact("aten::prod", "", at::ones({3}, at::kInt));
  expect_exact("aten::median", "dim", image(), 1, false);
  expect_exact("aten::logsumexp", "", transposed(), Ints{0}, false);
  expect_exact("aten::sort", "", transposed(), 0, true);
}

TEST(Layouts, ConvolutionsFollowTheFormatOfInputOrWeight) {
  const at::Tensor weight = at::randn({6, 4, 3, 3});
  const at::Tensor bias = at::randn({6});
  for (const at::Tensor& input : {image(), channels_last_image()}) {
    for (const at::Tensor& kernel :
         {weight, weight.contiguous(at::MemoryFormat::ChannelsLast), weight.to(at::kFloat)}) {
      expect_exact("aten::convolution", "", input, kernel, bias, Ints{2, 1}, Ints{1, 1}, Ints{1, 1},
                   false, Ints{0, 0}, 1);
      const at::Tensor output = at::convolution(input, kernel, bias, {1, 1}, {1, 1}, {1, 1},
                                                /*transposed=*/false, {0, 0}, 1);
      expect_exact("aten::convolution_backward", "", at::randn_like(output), input, kernel, Ints{6},
                   Ints{1, 1}, Ints{1, 1}, Ints{1, 1}, false, Ints{0, 0}, 1,
                   c10::List<bool>{true, true, true});
    }
  }
}

TEST(Layouts, OtherConvolutions) {
  const auto convolve = [](const at::Tensor& input, const at::Tensor& weight, bool transposed,
                           int64_t groups) {
    const Ints ones(input.dim() - 2, 1), zeros(input.dim() - 2, 0);
    expect_exact("aten::convolution", "", input, weight, none, ones, ones, ones, transposed, zeros,
                 groups);
  };
  convolve(at::randn({2, 4, 9}), at::randn({6, 4, 3}), false, 1);
  convolve(at::randn({2, 9, 4}).transpose(1, 2), at::randn({6, 4, 3}), false, 1);
  convolve(at::randn({2, 4, 5, 5, 5}).contiguous(at::MemoryFormat::ChannelsLast3d),
           at::randn({6, 4, 3, 3, 3}), false, 1);
  convolve(channels_last_image(), at::randn({4, 1, 3, 3}), false, 4);
  convolve(channels_last_image(), at::randn({4, 6, 3, 3}), true, 1);
  convolve(channels_last_image().to(at::kDouble), at::randn({6, 4, 3, 3}, at::kDouble), false, 1);
  // Small single images do not go through oneDNN.
  convolve(at::randn({1, 4, 5, 5, 5}).contiguous(at::MemoryFormat::ChannelsLast3d),
           at::randn({4, 4, 1, 1, 1}), false, 1);
}

TEST(Layouts, Normalizations) {
  const at::Tensor four = at::ones({4});
  const c10::List<bool> all{true, true, true};
  for (const at::Tensor& input : {image(), channels_last_image()}) {
    expect_exact("aten::native_layer_norm", "", input, Ints{8}, at::ones({8}), at::ones({8}), 1e-5);
    expect_exact("aten::native_group_norm", "", input, four, four, 2, 4, 48, 2, 1e-5);
    for (const bool training : {true, false}) {
      expect_exact("aten::native_batch_norm", "", input, four, four, four, four, training, 0.1,
                   1e-5);
      expect_exact("aten::native_batch_norm_backward", "", image(), input, four, four, four, four,
                   four, training, 1e-5, all);
    }
  }
  // Half-precision data with single-precision parameters keep single-precision statistics.
  expect_exact("aten::native_layer_norm", "", at::ones({3, 8}, at::kBFloat16), Ints{8},
               at::ones({8}), at::ones({8}), 1e-5);
  expect_exact("aten::native_batch_norm", "", image().to(at::kBFloat16), four, four, four, four,
               true, 0.1, 1e-5);
}

TEST(Layouts, Indexing) {
  const at::Tensor indices = at::zeros({2, 3}, at::kLong);
  const at::Tensor row = at::zeros({2}, at::kLong);
  expect_exact("aten::embedding", "", transposed(), indices);
  expect_exact("aten::embedding_dense_backward", "", at::randn({2, 3, 5}), indices, 4, -1, false);
  expect_exact("aten::index_select", "", transposed(), 1, row);
  expect_exact("aten::gather", "", transposed(), 1, indices);
  expect_exact("aten::index_put", "", transposed(),
               c10::List<std::optional<at::Tensor>>{std::optional<at::Tensor>(row)},
               at::randn({5}));
  expect_exact("aten::index_put_", "", transposed(),
               c10::List<std::optional<at::Tensor>>{std::optional<at::Tensor>(transposed() > 0)},
               at::ones({}));
  expect_exact("aten::index_fill", "int_Scalar", transposed(), 0, row, 1);
}

TEST(Layouts, ShapesThatDependOnDataAreLeftToTheOperator) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::index_put", "");
  const c10::List<std::optional<at::Tensor>> mask{std::optional<at::Tensor>(transposed() > 0)};
  EXPECT_THROW(promised(op, {transposed(), mask, at::ones({2}), false}), c10::Error);
}

TEST(Layouts, BadArgumentsThrow) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::embedding", "");
  EXPECT_THROW(promised(op, {at::ones({3, 4}), at::ones({2}), -1, false, false}), c10::Error);
  const auto stack = c10::Dispatcher::singleton().findSchemaOrThrow("aten::stack", "");
  EXPECT_THROW(promised(stack, {std::vector<at::Tensor>{at::ones({2}), at::ones({3})}, 0}),
               c10::Error);
}

TEST(Layouts, JoiningPaddingAndScattering) {
  const std::vector<at::Tensor> pair{channels_last_image(), channels_last_image()};
  for (int64_t dim = 0; dim <= 4; ++dim) expect_exact("aten::stack", "", pair, dim);
  expect_exact("aten::cat", "", pair, 1);
  expect_exact("aten::constant_pad_nd", "", channels_last_image(), Ints{1, 2, 0, -1});
  expect_exact("aten::constant_pad_nd", "", every_other(), Ints{-1, 0});
  expect_exact("aten::replication_pad2d", "", channels_last_image(), Ints{1, 1, 1, 1});
  expect_exact("aten::roll", "", channels_last_image(), Ints{1}, Ints{2});
  expect_exact("aten::rot90", "", transposed(), 1, Ints{0, 1});
  expect_exact("aten::repeat", "", transposed(), Ints{2, 1, 3});
  expect_exact("aten::slice_scatter", "", every_other(), at::ones({2, 5}), 0, 0, 2, 1);
  expect_exact("aten::slice_backward", "", at::ones({2, 5}), Ints{4, 5}, 0, 0, 2, 1);
}

TEST(Layouts, PoolingAndSampling) {
  expect_exact("aten::_adaptive_avg_pool2d", "", channels_last_image(), Ints{2, 2});
  expect_exact("aten::max_pool2d_with_indices", "", channels_last_image(), Ints{2, 2}, Ints{2, 2},
               Ints{0, 0}, Ints{1, 1}, false);
  expect_exact("aten::upsample_bilinear2d", "", channels_last_image(), Ints{12, 16}, false);
  expect_exact("aten::grid_sampler_2d", "", channels_last_image(), at::zeros({2, 3, 5, 2}), 0, 0,
               false);
  expect_exact("aten::pixel_shuffle", "", channels_last_image(), 2);
  expect_exact("aten::im2col", "", image(), Ints{2, 2}, Ints{1, 1}, Ints{0, 0}, Ints{2, 2});
}

TEST(Layouts, Attention) {
  const at::Tensor query = at::randn({2, 5, 3, 8}).transpose(1, 2);
  const at::Tensor key = at::randn({2, 3, 7, 8});
  const char* forward = "aten::_scaled_dot_product_flash_attention_for_cpu";
  const char* backward = "aten::_scaled_dot_product_flash_attention_for_cpu_backward";
  expect_exact(forward, "", query, key, key, 0.0, false);
  expect_exact(forward, "", key, query, query, 0.0, true);
  const auto [output, logsumexp] =
      at::_scaled_dot_product_flash_attention_for_cpu(query, key, key, 0.0, false);
  expect_exact(backward, "", at::randn_like(output), query, key, key, output, logsumexp, 0.0,
               false);
}

TEST(Layouts, Losses) {
  const at::Tensor scores = at::rand({3, 5}), target = at::rand({3, 5});
  for (const int64_t reduction : {0, 1, 2}) {
    expect_exact("aten::binary_cross_entropy", "", scores, target, none, reduction);
    expect_exact("aten::huber_loss", "", scores.t(), target.t(), reduction, 1.0);
    expect_exact("aten::mse_loss_backward", "", at::ones({}), scores.t(), target.t(), reduction);
    expect_exact("aten::nll_loss_forward", "", scores, at::zeros({3}, at::kLong), none, reduction,
                 -100);
  }
}

TEST(Layouts, TransformsAndDecompositions) {
  const at::Tensor signal = at::randn({3, 8, 5}, at::kComplexFloat);
  expect_exact("aten::_fft_c2c", "", signal, Ints{1}, 0, true);
  expect_exact("aten::_fft_r2c", "", at::randn({3, 8, 5}), Ints{0, 1}, 0, true);
  expect_exact("aten::_fft_c2r", "", signal, Ints{0, 2}, 0, 8);
  const at::Tensor spread = at::randn({2, 4, 4});
  const at::Tensor positive = at::matmul(spread, spread.mT()) + at::eye(4);
  expect_exact("aten::cholesky_inverse", "", positive);
  expect_exact("aten::geqrf", "", spread);
}

TEST(Layouts, ListsOfTensors) {
  const std::vector<at::Tensor> parameters{transposed(), at::randn({4})};
  const std::vector<at::Tensor> gradients{at::randn({3, 5}), at::randn({4})};
  expect_exact("aten::_foreach_add", "List", parameters, gradients, 1);
  expect_exact("aten::_foreach_mul", "Scalar", parameters, 2.0);
  expect_exact("aten::_foreach_sqrt", "", std::vector<at::Tensor>{at::ones({2}, at::kLong)});
  expect_exact("aten::_foreach_norm", "Scalar", parameters, 2);
  expect_exact("aten::_foreach_addcdiv_", "Scalar", parameters, gradients, gradients, 1);
}

TEST(Layouts, OutTensorsAreResizedAsEagerDoes) {
  const at::Tensor row = at::zeros({2}, at::kLong);
  expect_exact("aten::index_select", "out", transposed(), 0, row, at::empty({0}));
  expect_exact("aten::index_select", "out", transposed(), 0, row, at::empty({5, 2}).t());
  expect_exact("aten::arange", "start_out", 0, 7, 2, at::empty({0}));
  expect_exact("aten::zeros", "out", Ints{2, 3}, at::empty({0}));
  expect_exact("aten::var", "correction_out", image(), Ints{1}, 1, false, at::empty({0}));
}

}  // namespace
}  // namespace torch_lazy
