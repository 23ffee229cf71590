#include "backends/cpu/run_product.h"

#include "backends/cpu/convolution.h"
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
  if (product.convolution) {
    return true;  // they become steps only where they are
  }
  const Layout& out = product.out.layout;
  return out.sizes.size() == 2 && out.strides[1] == 1 && is_float(product.a) &&
         is_float(product.b) && is_float(product.out) &&
         has_product(out.sizes[0], out.sizes[1], product.a.layout.sizes[1]);
}

void run_own(const compile::Product& product, char* a, char* b, char* out) {
  if (product.convolution) {
    convolve(product, data(product.a, a), data(product.b, b), data(product.out, out));
    return;
  }
  ProductBlock block;
  block.a = data(product.a, a);
  block.a_row = product.a.layout.strides[0];
  block.a_depth = product.a.layout.strides[1];
  block.b = data(product.b, b);
  block.b_depth = product.b.layout.strides[0];
  block.b_column = product.b.layout.strides[1];
  block.result = data(product.out, out);
  block.result_row = product.out.layout.strides[0];
  block.rows = product.a.layout.sizes[0];
  block.columns = product.b.layout.sizes[1];
  block.depth = product.a.layout.sizes[1];
  multiply(block);
}

void run_aten(const at::Tensor& a, const at::Tensor& b, at::Tensor out) {
  if (a.dim() == 2) {
    at::cpu::mm_out(out, a, b);
  } else {
    at::cpu::bmm_out(out, a, b);
  }
}

}  // namespace torch_lazy
