#include "onednn/convolution.h"

#include <oneapi/dnnl/dnnl.hpp>
#include <oneapi/dnnl/dnnl_threadpool.hpp>

#include <algorithm>
#include <cstring>
#include <sstream>

namespace torch_lazy::onednn {
namespace {

using dnnl::memory;

class Threads final : public dnnl::threadpool_interop::threadpool_iface {
 public:
  Threads(int count, Parallel parallel) : count_(count), parallel_(parallel) {}

  int get_num_threads() const override { return count_; }
  bool get_in_parallel() const override { return false; }
  uint64_t get_flags() const override { return 0; }  // parallel_for returns when all is done

  void parallel_for(int count, const std::function<void(int, int)>& function) override {
    parallel_(count, [&](int i) { function(i, count); });
  }

 private:
  int count_;
  Parallel parallel_;
};

/// Never destroyed: plans may outlive everything that is static.
const dnnl::engine& engine() {
  static const auto* engine = new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return *engine;
}

memory::desc plain(const Shape& shape) {
  return {memory::dims(shape.sizes.begin(), shape.sizes.end()), memory::data_type::f32,
          memory::dims(shape.strides.begin(), shape.strides.end())};
}

memory::desc plain_weight(const Shape& shape, int64_t groups) {
  if (groups == 1) {
    return plain(shape);
  }
  memory::dims sizes{groups, shape.sizes[0] / groups};
  memory::dims strides{shape.strides[0] * sizes[1], shape.strides[0]};
  sizes.insert(sizes.end(), shape.sizes.begin() + 1, shape.sizes.end());
  strides.insert(strides.end(), shape.strides.begin() + 1, shape.strides.end());
  return {sizes, memory::data_type::f32, strides};
}

memory::desc any_layout(const memory::desc& plain) {
  return {plain.get_dims(), memory::data_type::f32, memory::format_tag::any};
}

int64_t aligned(int64_t bytes) {
  return (bytes + 63) / 64 * 64;
}

int64_t bytes_of(const memory::desc& desc) {
  return aligned(static_cast<int64_t>(desc.get_size()));
}

/// From one layout to another, or nothing where they are the same.
class Reorder {
 public:
  Reorder(const memory::desc& from, const memory::desc& to, const dnnl::primitive_attr& attributes)
      : from_(from), to_(to) {
    if (from != to) {
      desc_ = dnnl::reorder::primitive_desc(engine(), from, engine(), to, attributes);
      reorder_ = dnnl::reorder(desc_);
    }
  }

  bool needed() const { return static_cast<bool>(reorder_); }
  int64_t scratch_bytes() const { return needed() ? bytes_of(desc_.scratchpad_desc()) : 0; }

  void run(const void* from, void* to, void* scratch, dnnl::stream& stream) const {
    reorder_.execute(stream,
                     {{DNNL_ARG_FROM, memory(from_, engine(), const_cast<void*>(from))},
                      {DNNL_ARG_TO, memory(to_, engine(), to)},
                      {DNNL_ARG_SCRATCHPAD, memory(desc_.scratchpad_desc(), engine(), scratch)}});
  }

 private:
  memory::desc from_;
  memory::desc to_;
  dnnl::reorder::primitive_desc desc_;
  dnnl::reorder reorder_;
};

struct Layouts {
  memory::desc image;
  memory::desc weight;
  memory::desc result;
};

class Blocked final : public Convolution {
 public:
  Blocked(const dnnl::primitive_desc& desc, const dnnl::primitive& primitive, const Layouts& own,
          const Layouts& outside, const dnnl::primitive_attr& attributes, const Problem& problem)
      : desc_(desc),
        primitive_(primitive),
        own_(own),
        image_(outside.image, own.image, attributes),
        weight_(outside.weight, own.weight, attributes),
        result_(own.result, outside.result, attributes),
        gradient_(problem.gradient),
        parts_(problem.parts) {}

  int64_t weight_bytes() const override { return bytes_of(own_.weight); }

  int64_t scratch_bytes() const override {
    return image_bytes() + result_bytes() +
           std::max({bytes_of(desc_.scratchpad_desc()), image_.scratch_bytes(),
                     weight_.scratch_bytes(), result_.scratch_bytes()});
  }

  std::string weight_layout() const override {
    std::ostringstream text;
    const auto add = [&](const memory::dims& numbers) {
      for (const int64_t number : numbers) {
        text << number << ",";
      }
      text << " ";
    };
    add(own_.weight.get_padded_dims());
    add(own_.weight.get_strides());
    add(own_.weight.get_inner_blks());
    add(own_.weight.get_inner_idxs());
    return text.str();
  }

  void pack(const float* weight, void* packed, void* scratch, Parallel parallel) const override {
    if (!weight_.needed()) {
      std::memcpy(packed, weight, own_.weight.get_size());
      return;
    }
    Threads threads(parts_, parallel);
    dnnl::stream stream = dnnl::threadpool_interop::make_stream(engine(), &threads);
    weight_.run(weight, packed, scratch, stream);
  }

  void run(const float* image, const void* packed, float* result, void* scratch,
           Parallel parallel) const override {
    Threads threads(parts_, parallel);
    dnnl::stream stream = dnnl::threadpool_interop::make_stream(engine(), &threads);
    char* own_image = static_cast<char*>(scratch);
    char* own_result = own_image + image_bytes();
    char* rest = own_result + result_bytes();
    if (image_.needed()) {
      image_.run(image, own_image, rest, stream);
    }
    void* read = image_.needed() ? static_cast<void*>(own_image) : const_cast<float*>(image);
    void* written = result_.needed() ? static_cast<void*>(own_result) : result;
    primitive_.execute(
        stream,
        {{gradient_ ? DNNL_ARG_DIFF_DST : DNNL_ARG_SRC, memory(own_.image, engine(), read)},
         {DNNL_ARG_WEIGHTS, memory(own_.weight, engine(), const_cast<void*>(packed))},
         {gradient_ ? DNNL_ARG_DIFF_SRC : DNNL_ARG_DST, memory(own_.result, engine(), written)},
         {DNNL_ARG_SCRATCHPAD, memory(desc_.scratchpad_desc(), engine(), rest)}});
    if (result_.needed()) {
      result_.run(own_result, result, rest, stream);
    }
  }

 private:
  int64_t image_bytes() const { return image_.needed() ? bytes_of(own_.image) : 0; }
  int64_t result_bytes() const { return result_.needed() ? bytes_of(own_.result) : 0; }

  dnnl::primitive_desc desc_;
  dnnl::primitive primitive_;
  Layouts own_;
  Reorder image_;
  Reorder weight_;
  Reorder result_;
  bool gradient_;
  int parts_;
};

std::shared_ptr<const Convolution> make(const Problem& p) {
  dnnl_threadpool_interop_set_max_concurrency(p.parts);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  const memory::desc input = plain(p.input);
  const memory::desc weight = plain_weight(p.weight, p.groups);
  const memory::desc output = plain(p.output);
  const memory::dims stride(p.stride.begin(), p.stride.end());
  const memory::dims dilation{p.dilation[0] - 1, p.dilation[1] - 1};
  const memory::dims before(p.padding.begin(), p.padding.end());
  memory::dims after;  // what the output's size says, which may leave some of the input out
  for (int d = 0; d < 2; ++d) {
    after.push_back((p.output.sizes[d + 2] - 1) * p.stride[d] +
                    (p.weight.sizes[d + 2] - 1) * p.dilation[d] + 1 - p.input.sizes[d + 2] -
                    p.padding[d]);
  }
  const dnnl::convolution_forward::primitive_desc forward(
      engine(), dnnl::prop_kind::forward_training, dnnl::algorithm::convolution_direct,
      any_layout(input), any_layout(weight), any_layout(output), stride, dilation, before, after,
      attributes);
  if (!p.gradient) {
    return std::make_shared<Blocked>(
        forward, dnnl::convolution_forward(forward),
        Layouts{forward.src_desc(), forward.weights_desc(), forward.dst_desc()},
        Layouts{input, weight, output}, attributes, p);
  }
  const dnnl::convolution_backward_data::primitive_desc back(
      engine(), dnnl::algorithm::convolution_direct, any_layout(input), any_layout(weight),
      any_layout(output), stride, dilation, before, after, forward, attributes);
  return std::make_shared<Blocked>(
      back, dnnl::convolution_backward_data(back),
      Layouts{back.diff_dst_desc(), back.weights_desc(), back.diff_src_desc()},
      Layouts{output, weight, input}, attributes, p);
}

}  // namespace

std::shared_ptr<const Convolution> make_convolution(const Problem& problem) {
  try {
    return make(problem);
  } catch (const dnnl::error& error) {
    if (error.status == dnnl_unimplemented || error.status == dnnl_invalid_arguments) {
      return nullptr;
    }
    throw;
  }
}

}  // namespace torch_lazy::onednn
