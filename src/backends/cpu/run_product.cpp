#include "backends/cpu/run_product.h"

#include "backends/cpu/product.h"

#include <ATen/ops/bmm_cpu_dispatch.h>
#include <ATen/ops/mm_cpu_dispatch.h>

namespace torch_lazy {
namespace {

bool is_float(const compile::View& view) {
  return view.layout.dtype == at::kFloat;
}

float* data(const compile::View& view, char* memory) {
  return reinterpret_cast<float*>(memory) + view.layout.offset;
}

}  // namespace

bool is_own(const compile::Product& product) {
  const Layout& out = product.out.layout;
  const size_t row = out.sizes.size() - 2;
  return out.strides[row + 1] == 1 && is_float(product.a) && is_float(product.b) &&
         is_float(product.out) &&
         has_product(out.sizes[row], out.sizes[row + 1], product.a.layout.sizes[row + 1]);
}

bool has_own(const compile::Product& product) {
  return product.convolution ? has_convolution(product) : is_own(product);
}

void run_convolution(const compile::Product& product, const PreparedConvolution& convolution,
                     char* a, char* b, char* out, Beside* beside) {
  convolution.run(data(product.a, a), data(product.b, b), data(product.out, out), beside);
}

void run_own(const compile::Product& product, char* a, char* b, char* out) {
  const Layout& left = product.a.layout;
  const Layout& right = product.b.layout;
  const Layout& result = product.out.layout;
  const size_t row = result.sizes.size() - 2;
  ProductBlock first;
  first.a = data(product.a, a);
  first.a_row = left.strides[row];
  first.a_depth = left.strides[row + 1];
  first.b = data(product.b, b);
  first.b_depth = right.strides[row];
  first.b_column = right.strides[row + 1];
  first.result = data(product.out, out);
  first.result_row = result.strides[row];
  first.rows = left.sizes[row];
  first.columns = right.sizes[row + 1];
  first.depth = left.sizes[row + 1];
  int64_t count = 1;
  for (size_t k = 0; k < row; ++k) {
    count *= result.sizes[k];
  }
  multiply_each(count, [&](int64_t i) {
    ProductBlock block = first;
    for (size_t k = row; k-- > 0; i /= result.sizes[k]) {
      const int64_t index = i % result.sizes[k];
      block.a += index * left.strides[k];
      block.b += index * right.strides[k];
      block.result += index * result.strides[k];
    }
    return block;
  });
}

void run_aten(const at::Tensor& a, const at::Tensor& b, at::Tensor out) {
  if (a.dim() == 2) {
    at::cpu::mm_out(out, a, b);
  } else {
    at::cpu::bmm_out(out, a, b);
  }
}

}  // namespace torch_lazy
