// The implementations that oneDNN chooses from: convolutions of float32 with AVX-512, and what
// brings data into their layouts. This takes the place of oneDNN's own lists, which know every kind
// of operator; of its files only those are compiled that these need (CMakeLists.txt).
#include "common/c_types_map.hpp"
#include "common/convolution_pd.hpp"
#include "cpu/cpu_engine.hpp"
#include "cpu/reorder/cpu_reorder.hpp"
#include "cpu/x64/jit_avx512_common_1x1_convolution.hpp"
#include "cpu/x64/jit_avx512_common_convolution.hpp"

namespace dnnl::impl::cpu {
namespace {

const impl_list_item_t kNone[] = {nullptr};

bool are_all_float(const convolution_desc_t& desc) {
  return conv_prop_invariant_src_d(&desc)->data_type == data_type::f32 &&
         conv_prop_invariant_wei_d(&desc)->data_type == data_type::f32 &&
         conv_prop_invariant_dst_d(&desc)->data_type == data_type::f32;
}

}  // namespace

const impl_list_item_t* get_convolution_impl_list(const convolution_desc_t* desc) {
  static const impl_list_item_t forward[] = {
      CPU_INSTANCE(x64::jit_avx512_common_1x1_convolution_fwd_f32_t)
          CPU_INSTANCE(x64::jit_avx512_common_convolution_fwd_t<data_type::f32>) nullptr};
  static const impl_list_item_t input_gradient[] = {
      CPU_INSTANCE(x64::jit_avx512_common_1x1_convolution_bwd_data_f32_t)
          CPU_INSTANCE(x64::jit_avx512_common_convolution_bwd_data_t<data_type::f32>) nullptr};
  if (!are_all_float(*desc)) {
    return kNone;
  }
  switch (desc->prop_kind) {
    case prop_kind::forward_training:
      return forward;
    case prop_kind::backward_data:
      return input_gradient;
    default:
      return kNone;  // gradients of weights are our own
  }
}

const impl_list_item_t* cpu_engine_impl_list_t::get_reorder_implementation_list(
    const memory_desc_t* from, const memory_desc_t* to) {
  static const impl_list_item_t reorders[] = {CPU_REORDER_INSTANCE(
      x64::jit_blk_reorder_t) CPU_REORDER_INSTANCE(x64::jit_uni_reorder_t) nullptr};
  const bool are_float = from->data_type == data_type::f32 && to->data_type == data_type::f32;
  return are_float ? reorders : kNone;
}

const impl_list_item_t* cpu_engine_impl_list_t::get_concat_implementation_list() {
  return kNone;
}

const impl_list_item_t* cpu_engine_impl_list_t::get_sum_implementation_list() {
  return kNone;
}

#define TORCH_LAZY_NONE(kind)                                            \
  const impl_list_item_t* get_##kind##_impl_list(const kind##_desc_t*) { \
    return kNone;                                                        \
  }
TORCH_LAZY_NONE(batch_normalization)
TORCH_LAZY_NONE(binary)
TORCH_LAZY_NONE(deconvolution)
TORCH_LAZY_NONE(eltwise)
TORCH_LAZY_NONE(group_normalization)
TORCH_LAZY_NONE(inner_product)
TORCH_LAZY_NONE(layer_normalization)
TORCH_LAZY_NONE(lrn)
TORCH_LAZY_NONE(matmul)
TORCH_LAZY_NONE(pooling)
TORCH_LAZY_NONE(prelu)
TORCH_LAZY_NONE(reduction)
TORCH_LAZY_NONE(resampling)
TORCH_LAZY_NONE(rnn)
TORCH_LAZY_NONE(shuffle)
TORCH_LAZY_NONE(softmax)
#undef TORCH_LAZY_NONE

}  // namespace dnnl::impl::cpu
