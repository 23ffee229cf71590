// Rows of the table of operators: batch norm and group norm. Statistics are a piece, what is done
// to every element is another, so that it can be merged with what comes after.
#include "compile/places.h"

#include <numeric>

namespace torch_lazy::compile {
namespace {

/// 1 / sqrt(variance + eps)
int32_t inverse_deviation(Lowering& l, int32_t variance, size_t eps) {
  const Type type = l.type(variance);
  const int32_t sum = l.make(Opcode::add, variance, l.number(eps, type));
  return l.make(Opcode::div, l.constant_of(type, 1), l.make(Opcode::sqrt, sum));
}

/// An empty result: memory without elements, which nothing is written to.
void store_nothing(Lowering& l, size_t result) {
  if (!l.wanted(result)) {
    return;
  }
  const Type type = *type_of(l.result_layout(result).dtype);
  l.begin({});
  Access access;
  access.slot = static_cast<uint32_t>(l.node().outputs[result]);
  access.type = type;
  access.mask = l.constant_of(Type::boolean, 0);
  l.piece().store(std::move(access), l.constant_of(type, 0));
  l.end();
}

// ---- Batch norm: [n, channels, ...] ----

constexpr double kLongSum = 1024;

/// A call whose statistics belong to dimension 1.
class ByChannel {
 public:
  ByChannel(Lowering& l, size_t input) : l_(l), input_(l.layout(input)) {
    const std::optional<Type> computed = float_type(l, input);
    if (!computed || input_.sizes.size() < 2 || count(input_.sizes) == 0) {
      l.fail();
      return;
    }
    type = *computed;
    for (size_t k = 0; k < input_.sizes.size(); ++k) {
      if (k != 1) {
        reduced_.push_back(static_cast<int64_t>(k));
      }
    }
    elements = static_cast<double>(count(input_.sizes) / input_.sizes[1]);
  }

  void begin_statistics() { l_.begin_reduction(input_.sizes, reduced_); }
  void begin_elements() { l_.begin(input_.sizes); }
  void begin_channels() { l_.begin(sizes()); }

  /// An argument with a number for each channel.
  int32_t load(size_t argument) {
    if (!l_.is_tensor(argument) || l_.layout(argument).sizes.size() != 1 ||
        l_.layout(argument).sizes[0] != input_.sizes[1]) {
      l_.fail();
      return l_.constant_of(type, 0);
    }
    return l_.load_layout(slot_of(l_, argument), spread(l_.layout(argument)), type);
  }
  void store(size_t result, int32_t value) {
    l_.store_operand_like(static_cast<uint32_t>(l_.node().outputs[result]),
                          spread(l_.result_layout(result)), value);
  }

  View hand_over() { return compile::hand_over(l_, type, sizes()); }

  /// The sum over a channel. Where neighbours in memory are channels, every one is summed up by a
  /// single lane, element after element: for many of them a float is too short.
  int32_t sum(int32_t value) {
    if (input_.strides[1] != 1 || elements < kLongSum) {
      return l_.make(Opcode::reduce_sum, value);
    }
    return l_.convert(l_.make(Opcode::reduce_sum, l_.convert(value, Type::f64)), type);
  }

  Type type = Type::f32;
  double elements = 1;  // of a channel

 private:
  at::DimVector sizes() const {
    at::DimVector sizes(input_.sizes.size(), 1);
    sizes[1] = input_.sizes[1];
    return sizes;
  }

  /// [channels] among the dimensions of the input
  Layout spread(const Layout& from) const {
    Layout layout = from;
    layout.sizes = sizes();
    layout.strides.assign(input_.sizes.size(), 0);
    layout.strides[1] = from.strides[0];
    return layout;
  }

  Lowering& l_;
  const Layout& input_;
  std::vector<int64_t> reduced_;
};

/// The arguments that the variants of batch norm have in different places.
struct BatchNormArguments {
  explicit BatchNormArguments(const Lowering& l)
      : running_mean(argument_named(l, "running_mean")),
        running_var(argument_named(l, "running_var")),
        momentum(argument_named(l, "momentum")),
        eps(argument_named(l, "eps")),
        training(flag_named(l, "training")) {
    if (running_mean && !l.is_tensor(*running_mean)) {
      running_mean.reset();
    }
    if (running_var && !l.is_tensor(*running_var)) {
      running_var.reset();
    }
  }

  std::optional<size_t> running_mean;
  std::optional<size_t> running_var;
  std::optional<size_t> momentum;
  std::optional<size_t> eps;
  bool training = false;
};

/// Moves a running statistic towards the new one; PyTorch does that in double.
void update(Lowering& l, ByChannel& by, size_t argument, int32_t value, size_t momentum) {
  const std::optional<size_t> result = wanted_write(l, l.argument(argument).index);
  if (!result) {
    return;
  }
  const int32_t weight = l.number(momentum, Type::f64);
  const int32_t rest = l.make(Opcode::sub, l.constant_of(Type::f64, 1), weight);
  const int32_t old = l.convert(by.load(argument), Type::f64);
  l.store(*result, l.make(Opcode::add, l.make(Opcode::mul, weight, l.convert(value, Type::f64)),
                          l.make(Opcode::mul, rest, old)));
}

/// What a write that changes nothing leaves.
void keep(Lowering& l, ByChannel& by, size_t argument, int32_t value) {
  if (const std::optional<size_t> result = wanted_write(l, l.argument(argument).index)) {
    by.store(*result, value);
  }
}

/// input, weight, bias, ... -> output, save_mean, save_invstd, then the running statistics
bool batch_norm(Lowering& l) {
  const BatchNormArguments arguments(l);
  if (l.description().fresh.size() != 3 || !arguments.eps || !arguments.momentum ||
      (!arguments.training && (!arguments.running_mean || !arguments.running_var))) {
    return false;
  }
  ByChannel by(l, 0);
  if (l.failed()) {
    return false;
  }
  const View factors = by.hand_over();
  const View offsets = by.hand_over();
  int32_t mean = -1;
  int32_t invstd = -1;
  if (arguments.training) {
    by.begin_statistics();
    const int32_t x = l.load(0, by.type);
    const int32_t n = l.fixed(by.type, by.elements);
    mean = l.make(Opcode::div, by.sum(x), n);
    const int32_t d = l.make(Opcode::sub, x, mean);
    const int32_t sum = by.sum(l.make(Opcode::mul, d, d));
    const int32_t variance = l.make(Opcode::div, sum, n);
    invstd = inverse_deviation(l, variance, *arguments.eps);
    if (number_is(l, *arguments.eps, kClassZero, 0)) {  // then PyTorch avoids the division by zero
      const int32_t zero = l.constant_of(by.type, 0);
      invstd = l.make(Opcode::select, l.make(Opcode::eq, variance, zero), zero, invstd);
    }
    l.store(1, mean);
    l.store(2, invstd);
    if (arguments.running_mean) {
      update(l, by, *arguments.running_mean, mean, *arguments.momentum);
    }
    if (arguments.running_var) {
      const int32_t unbiased = l.make(Opcode::div, sum, l.fixed(by.type, by.elements - 1));
      update(l, by, *arguments.running_var, unbiased, *arguments.momentum);
    }
  } else {
    store_nothing(l, 1);
    store_nothing(l, 2);
    by.begin_channels();
    mean = by.load(*arguments.running_mean);
    const int32_t variance = by.load(*arguments.running_var);
    invstd = inverse_deviation(l, variance, *arguments.eps);
    // Some variants say that they write the statistics, which they do only in training.
    keep(l, by, *arguments.running_mean, mean);
    keep(l, by, *arguments.running_var, variance);
  }
  const int32_t factor = l.is_absent(1) ? invstd : l.make(Opcode::mul, invstd, by.load(1));
  const int32_t shift = l.make(Opcode::mul, mean, factor);
  const int32_t offset =
      l.is_absent(2) ? l.make(Opcode::neg, shift) : l.make(Opcode::sub, by.load(2), shift);
  give(l, factors, factor);
  give(l, offsets, offset);
  l.end();
  by.begin_elements();
  l.store(0, l.make(Opcode::add, l.make(Opcode::mul, l.load(0, by.type), take(l, factors)),
                    take(l, offsets)));
  l.end();
  return true;
}

/// grad_out, input, weight, running_mean, running_var, save_mean, save_invstd, train, eps, mask
bool batch_norm_backward(Lowering& l) {
  if (!l.is_tensor(0) || !l.is_tensor(1) || !l.is_constant(7) || !l.description().writes.empty() ||
      l.layout(0).sizes != l.layout(1).sizes) {
    return false;
  }
  ByChannel by(l, 1);
  if (l.failed()) {
    return false;
  }
  const bool train = l.constant(7).toBool();
  const std::optional<size_t> grad_input = wanted_return(l, 0);
  const std::optional<size_t> grad_weight = wanted_return(l, 1);
  const std::optional<size_t> grad_bias = wanted_return(l, 2);
  const size_t mean = train ? 5 : 3;
  auto invstd = [&] { return train ? by.load(6) : inverse_deviation(l, by.load(4), 8); };
  const bool statistics = grad_weight || grad_bias || (grad_input && train);
  const View scales = by.hand_over();
  const View slopes = by.hand_over();
  const View means = by.hand_over();
  if (statistics) {
    by.begin_statistics();
    const int32_t g = l.load(0, by.type);
    const int32_t d = l.make(Opcode::sub, l.load(1, by.type), by.load(mean));
    const int32_t sum = by.sum(g);
    const int32_t dot = by.sum(l.make(Opcode::mul, d, g));
    const int32_t inverse = invstd();
    if (grad_input && train) {
      const int32_t n = l.fixed(by.type, by.elements);
      const int32_t squared = l.make(Opcode::mul, l.make(Opcode::mul, dot, inverse), inverse);
      give(l, slopes, l.make(Opcode::div, squared, n));
      give(l, means, l.make(Opcode::div, sum, n));
    }
    if (grad_weight) {
      l.store(*grad_weight, l.make(Opcode::mul, dot, inverse));
    }
    if (grad_bias) {
      l.store(*grad_bias, sum);
    }
    l.end();
  }
  if (grad_input) {
    by.begin_channels();
    const int32_t inverse = invstd();
    give(l, scales, l.is_absent(2) ? inverse : l.make(Opcode::mul, inverse, by.load(2)));
    l.end();
    by.begin_elements();
    int32_t value = l.load(0, by.type);
    if (train) {
      const int32_t d = l.make(Opcode::sub, l.load(1, by.type), by.load(mean));
      value = l.make(Opcode::sub, l.make(Opcode::sub, value, take(l, means)),
                     l.make(Opcode::mul, d, take(l, slopes)));
    }
    l.store(*grad_input, l.make(Opcode::mul, value, take(l, scales)));
    l.end();
  }
  return true;
}

// ---- Group norm: [n, channels, ...] as [n, groups, channels of a group, ...] ----

/// Whether the input is [N, C, ...] by the arguments N, C and HxW: PyTorch goes by these, whatever
/// the dimensions are.
bool has_sizes(const Lowering& l, const Layout& input, size_t n) {
  for (size_t argument = n; argument < n + 4; ++argument) {
    if (!l.is_constant(argument)) {
      return false;
    }
  }
  return input.sizes.size() >= 2 && l.constant(n).toInt() == input.sizes[0] &&
         l.constant(n + 1).toInt() == input.sizes[1] &&
         l.constant(n + 2).toInt() == count(at::IntArrayRef(input.sizes).slice(2));
}

class ByGroup {
 public:
  /// `n`: the first of the arguments N, C, HxW, group.
  ByGroup(Lowering& l, size_t input, size_t n) : l_(l), input_(l.layout(input)) {
    const std::optional<Type> computed = float_type(l, input);
    const size_t group = n + 3;
    if (!computed || !has_sizes(l, input_, n) || l.constant(group).toInt() <= 0 ||
        input_.sizes[1] % l.constant(group).toInt() != 0) {
      l.fail();
      return;
    }
    type = *computed;
    groups_ = l.constant(group).toInt();
    channels_ = input_.sizes[1] / groups_;
    sizes_ = split(input_).sizes;
    elements = static_cast<double>(count(input_.sizes) / (input_.sizes[0] * groups_));
  }

  /// Rows are groups.
  void begin_groups() { l_.begin(sizes_, static_cast<int>(sizes_.size()) - 2); }
  /// Rows are channels.
  void begin_channels() {
    std::vector<int64_t> reduced{0};
    for (size_t k = 3; k < sizes_.size(); ++k) {
      reduced.push_back(static_cast<int64_t>(k));
    }
    l_.begin_reduction(sizes_, reduced);
  }
  void begin_elements() { l_.begin(sizes_); }

  /// An argument of the input's sizes.
  int32_t load(size_t argument) {
    if (!l_.is_tensor(argument) || l_.layout(argument).sizes != input_.sizes) {
      l_.fail();
      return l_.constant_of(type, 0);
    }
    return l_.load_layout(slot_of(l_, argument), split(l_.layout(argument)), type);
  }
  void store(size_t result, int32_t value) {
    store_as(result, split(l_.result_layout(result)), value);
  }

  /// [channels]
  int32_t load_channels(size_t argument) {
    if (!l_.is_tensor(argument) ||
        l_.layout(argument).sizes != at::DimVector{groups_ * channels_}) {
      l_.fail();
      return l_.constant_of(type, 0);
    }
    return l_.load_layout(slot_of(l_, argument), by_channel(l_.layout(argument)), type);
  }
  void store_channels(size_t result, int32_t value) {
    store_as(result, by_channel(l_.result_layout(result)), value);
  }

  /// [n, groups]
  int32_t load_groups(size_t argument) {
    if (!l_.is_tensor(argument) ||
        l_.layout(argument).sizes != at::DimVector{input_.sizes[0], groups_}) {
      l_.fail();
      return l_.constant_of(type, 0);
    }
    Layout layout = l_.layout(argument);
    layout.sizes.resize(sizes_.size(), 1);
    layout.strides.resize(sizes_.size(), 0);
    return l_.load_layout(slot_of(l_, argument), layout, type);
  }

  View hand_over() {
    at::DimVector sizes(sizes_.size(), 1);
    sizes[0] = sizes_[0];
    sizes[1] = sizes_[1];
    return compile::hand_over(l_, type, sizes);
  }

  Type type = Type::f32;
  double elements = 1;  // of a group

 private:
  void store_as(size_t result, const Layout& layout, int32_t value) {
    if (l_.wanted(result)) {
      l_.store_operand_like(static_cast<uint32_t>(l_.node().outputs[result]), layout, value);
    }
  }

  Layout split(Layout layout) const {
    layout.sizes[1] = channels_;
    layout.sizes.insert(layout.sizes.begin() + 1, groups_);
    layout.strides.insert(layout.strides.begin() + 1, layout.strides[1] * channels_);
    return layout;
  }

  Layout by_channel(const Layout& layout) const {
    Layout made = layout;
    made.sizes.assign(sizes_.size(), 1);
    made.strides.assign(sizes_.size(), 0);
    made.sizes[1] = groups_;
    made.sizes[2] = channels_;
    made.strides[1] = layout.strides[0] * channels_;
    made.strides[2] = layout.strides[0];
    return made;
  }

  Lowering& l_;
  const Layout& input_;
  int64_t groups_ = 1;
  int64_t channels_ = 1;  // of a group
  at::DimVector sizes_;
};

/// Whether elements lie one after the other, channels before or after the other dimensions. Others
/// PyTorch's kernel refuses.
bool is_dense(const Layout& layout) {
  std::vector<size_t> order(layout.sizes.size());
  std::iota(order.begin(), order.end(), 0);
  for (bool last : {false, true}) {
    if (last) {
      std::rotate(order.begin() + 1, order.begin() + 2, order.end());
    }
    int64_t stride = 1;
    bool dense = true;
    for (size_t k = order.size(); k-- > 0;) {
      const int64_t size = layout.sizes[order[k]];
      dense = dense && (size == 1 || layout.strides[order[k]] == stride);
      stride *= size;
    }
    if (dense) {
      return true;
    }
  }
  return false;
}

/// input, weight, bias, N, C, HxW, group, eps -> output, mean, rstd
bool group_norm(Lowering& l) {
  if (l.description().fresh.size() != 3 || !l.is_tensor(0) || l.layout(0).sizes.size() < 2 ||
      !is_dense(l.layout(0))) {
    return false;
  }
  ByGroup by(l, 0, 3);
  if (l.failed()) {
    return false;
  }
  const View means = by.hand_over();
  const View inverses = by.hand_over();
  by.begin_groups();
  int32_t x = by.load(0);
  const int32_t n = l.fixed(by.type, by.elements);
  const int32_t mean = l.make(Opcode::div, l.make(Opcode::reduce_sum, x), n);
  const int32_t d = l.make(Opcode::sub, x, mean);
  const int32_t variance =
      l.make(Opcode::div, l.make(Opcode::reduce_sum, l.make(Opcode::mul, d, d)), n);
  const int32_t rstd = inverse_deviation(l, variance, 7);
  l.store(1, mean);
  l.store(2, rstd);
  give(l, means, mean);
  give(l, inverses, rstd);
  l.end();
  by.begin_elements();
  x = by.load(0);
  int32_t scale = take(l, inverses);
  if (!l.is_absent(1)) {
    scale = l.make(Opcode::mul, scale, by.load_channels(1));
  }
  int32_t y = l.make(Opcode::mul, l.make(Opcode::sub, x, take(l, means)), scale);
  if (!l.is_absent(2)) {
    y = l.make(Opcode::add, y, by.load_channels(2));
  }
  by.store(0, y);
  l.end();
  return true;
}

/// grad_out, input, mean, rstd, weight, N, C, HxW, group, output_mask
bool group_norm_backward(Lowering& l) {
  if (!l.is_tensor(1)) {
    return false;
  }
  ByGroup by(l, 1, 5);
  if (l.failed() || !l.description().writes.empty()) {
    return false;
  }
  auto normalized = [&] {
    return l.make(Opcode::mul, l.make(Opcode::sub, by.load(1), by.load_groups(2)),
                  by.load_groups(3));
  };
  if (const std::optional<size_t> grad_input = wanted_return(l, 0)) {
    by.begin_groups();
    int32_t g = by.load(0);
    if (!l.is_absent(4)) {
      g = l.make(Opcode::mul, g, by.load_channels(4));
    }
    const int32_t x = normalized();
    const int32_t n = l.fixed(by.type, by.elements);
    const int32_t mean_g = l.make(Opcode::div, l.make(Opcode::reduce_sum, g), n);
    const int32_t mean_gx =
        l.make(Opcode::div, l.make(Opcode::reduce_sum, l.make(Opcode::mul, g, x)), n);
    const int32_t inner =
        l.make(Opcode::sub, l.make(Opcode::sub, g, mean_g), l.make(Opcode::mul, x, mean_gx));
    by.store(*grad_input, l.make(Opcode::mul, by.load_groups(3), inner));
    l.end();
  }
  const std::optional<size_t> grad_weight = wanted_return(l, 1);
  const std::optional<size_t> grad_bias = wanted_return(l, 2);
  if (grad_weight || grad_bias) {
    by.begin_channels();
    const int32_t g = by.load(0);
    if (grad_weight) {
      by.store_channels(*grad_weight,
                        l.make(Opcode::reduce_sum, l.make(Opcode::mul, g, normalized())));
    }
    if (grad_bias) {
      by.store_channels(*grad_bias, l.make(Opcode::reduce_sum, g));
    }
    l.end();
  }
  return true;
}

constexpr OperatorRow kRows[] = {
    {"_native_batch_norm_legit", batch_norm, true},
    {"_native_batch_norm_legit_no_training", batch_norm, true},
    {"native_batch_norm", batch_norm, true},
    {"native_batch_norm_backward", batch_norm_backward, true},
    {"native_group_norm", group_norm},
    {"native_group_norm_backward", group_norm_backward},
};

}  // namespace

c10::ArrayRef<OperatorRow> batch_norm_rows() {
  return kRows;
}

}  // namespace torch_lazy::compile
