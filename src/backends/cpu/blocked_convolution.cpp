#include "backends/cpu/blocked_convolution.h"

#ifdef TORCH_LAZY_ONEDNN

#include "backends/cpu/arena.h"
#include "backends/cpu/convolution_operands.h"
#include "backends/cpu/product.h"
#include "base/settings.h"
#include "onednn/convolution.h"
#include <torch_lazy/metrics.h>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <sstream>
#include <string>

namespace torch_lazy {
namespace {

void on_threads(int count, const std::function<void(int)>& function) {
  at::parallel_for(0, count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      function(static_cast<int>(i));
    }
  });
}

onednn::Shape shape_of(const Planes& planes) {
  onednn::Shape shape;
  int64_t extent = 1;
  for (size_t d = 0; d < 4; ++d) {
    shape.sizes[d] = planes.sizes[d];
    shape.strides[d] = planes.strides[d];
    extent = std::max(extent, planes.sizes[d] * planes.strides[d]);
  }
  for (size_t d = 0; d < 4; ++d) {
    if (shape.sizes[d] == 1) {
      shape.strides[d] = extent;  // it may be anything, but oneDNN looks for overlaps
    }
  }
  return shape;
}

/// The work is cut into parts without regard to the number of threads. The sums of 1x1 convolutions
/// are cut as well: these always have the same number.
int parts(bool is_1x1) {
  constexpr int kParts = 16;
  return is_1x1 ? kParts : std::max(kParts, at::get_num_threads());
}

onednn::Problem problem_of(const compile::Product& product) {
  const compile::Convolution& c = *product.convolution;
  const ConvolutionOperands operands(product, nullptr, nullptr, nullptr);
  onednn::Problem problem;
  problem.gradient = c.kind == compile::Convolution::Kind::input_gradient;
  problem.input = shape_of(operands.input);
  problem.weight = shape_of(operands.weight);
  problem.output = shape_of(operands.output);
  problem.stride = c.stride;
  problem.padding = c.padding;
  problem.dilation = c.dilation;
  problem.groups = c.groups;
  problem.parts = parts(operands.taps() == 1);
  return problem;
}

std::string name_of(const Layout& weight, const onednn::Convolution& convolution) {
  std::ostringstream name;
  name << "onednn " << weight.offset << " " << at::IntArrayRef(weight.sizes) << " "
       << at::IntArrayRef(weight.strides) << " " << convolution.weight_layout();
  return name.str();
}

/// A weight in oneDNN's layout, beside the plain one.
struct KeptWeight {
  int64_t uses = 0;  // of the weight as it is
  c10::Storage packed;
};

class BlockedConvolution final : public PreparedConvolution {
 public:
  BlockedConvolution(std::shared_ptr<const onednn::Convolution> convolution, const Layout& weight)
      : convolution_(std::move(convolution)), weight_name_(name_of(weight, *convolution_)) {}

  void run(float* a, float* b, float* out, Beside* beside) const override {
    KeptWeight* kept = beside && settings().keep_weights ? find(*beside) : nullptr;
    const bool keep = kept && ++kept->uses > 1;  // what changes in every step is not worth it
    if (keep && kept->packed) {
      static auto& reused = metrics::counter("KeptWeightsReused");
      reused.add();
    } else if (keep) {
      kept->packed = pack(b);
      static auto& count = metrics::counter("KeptWeights");
      count.add();
    }
    const int64_t own = keep ? 0 : convolution_->weight_bytes();
    const c10::Storage block = take_block(own + convolution_->scratch_bytes());
    char* packed = static_cast<char*>(block.mutable_data());
    char* scratch = packed + own;
    if (!keep) {
      convolution_->pack(b, packed, scratch, on_threads);
    }
    convolution_->run(a, keep ? kept->packed.data() : packed, out, scratch, on_threads);
  }

 private:
  c10::Storage pack(const float* weight) const {
    const int64_t bytes = convolution_->weight_bytes();
    make_room(bytes);
    c10::Storage packed = at::empty({bytes}, at::kByte).storage();
    const c10::Storage block = take_block(convolution_->scratch_bytes());
    convolution_->pack(weight, packed.mutable_data(), block.mutable_data(), on_threads);
    return packed;
  }

  KeptWeight* find(Beside& beside) const {
    std::shared_ptr<void>& place = beside[weight_name_];
    if (!place) {
      place = std::make_shared<KeptWeight>();
    }
    return static_cast<KeptWeight*>(place.get());
  }

  std::shared_ptr<const onednn::Convolution> convolution_;
  std::string weight_name_;
};

}  // namespace

bool has_onednn() {
  return has_avx512();
}

std::shared_ptr<const PreparedConvolution> blocked_convolution(const compile::Product& product) {
  auto convolution = onednn::make_convolution(problem_of(product));
  return convolution
             ? std::make_shared<BlockedConvolution>(std::move(convolution), product.b.layout)
             : nullptr;
}

}  // namespace torch_lazy

#else

namespace torch_lazy {

bool has_onednn() {
  return false;
}

std::shared_ptr<const PreparedConvolution> blocked_convolution(const compile::Product&) {
  return nullptr;
}

}  // namespace torch_lazy

#endif
