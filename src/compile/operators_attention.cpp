// Rows of the table of operators: attention, where the target has products of its own for it.
// PyTorch's kernel calls those of a library for small blocks.
#include "compile/cost.h"
#include "compile/lowering.h"
#include "compile/places.h"

#include <cmath>

namespace torch_lazy::compile {
namespace {

/// Of a batch of heads: scores of every query with every key, in float.
class Attention {
 public:
  /// `first`: the argument with the queries; keys and values come after it.
  Attention(Lowering& l, size_t first) : l_(l), first_(first) {}

  /// Whether it can be computed here: plain heads, no dropout.
  bool begin() {
    const std::optional<size_t> dropout = argument_named(l_, "dropout_p");
    const std::optional<size_t> mask = argument_named(l_, "attn_mask");
    if (mask && !l_.is_absent(*mask)) {
      mask_ = mask;
    }
    for (size_t i = first_; i < first_ + 3; ++i) {
      if (!l_.is_tensor(i) || !is_plain(l_.layout(i)) || l_.layout(i).dtype != at::kFloat ||
          l_.layout(i).sizes.size() != 4) {
        return false;
      }
    }
    const auto& q = l_.layout(first_).sizes;
    const auto& k = l_.layout(first_ + 1).sizes;
    const auto& v = l_.layout(first_ + 2).sizes;
    if (!dropout || !number_is(l_, *dropout, kClassZero, 0) || k != v || q[0] != k[0] ||
        q[1] != k[1] || q[3] != k[3]) {
      return false;
    }
    if (mask_ && (!l_.is_tensor(*mask_) || !is_plain(l_.layout(*mask_)) ||
                  l_.layout(*mask_).dtype != at::kFloat)) {
      return false;
    }
    sizes_ = {q[0], q[1], q[2], k[2]};
    return worth_keeping_scores(count(sizes_) * static_cast<int64_t>(sizeof(float)),
                                q[2] * k[2] * q[3]);
  }

  View query() const { return l_.view(first_); }
  View key() const { return l_.view(first_ + 1); }
  View value() const { return l_.view(first_ + 2); }

  View room() { return hand_over(l_, Type::f32, sizes_); }

  /// A piece with a row for each query.
  void begin_rows() { l_.begin(sizes_, 1); }

  /// A product of queries and keys as it counts: in a piece of rows.
  int32_t score(const View& products) {
    int32_t score = l_.make(Opcode::mul, take(l_, products), scale());
    if (mask_) {
      score = l_.make(Opcode::add, score, l_.load(*mask_, Type::f32));
    }
    if (flag_named(l_, "is_causal")) {
      const int32_t before = l_.make(Opcode::le, position(l_, sizes_, 3), position(l_, sizes_, 2));
      score = l_.make(Opcode::select, before, score, l_.constant_of(Type::f32, -kInfinity));
    }
    return score;
  }

  int32_t scale() {
    const std::optional<size_t> given = argument_named(l_, "scale");
    if (given && !l_.is_absent(*given)) {
      return l_.number(*given, Type::f32);
    }
    return l_.fixed(Type::f32, 1 / std::sqrt(static_cast<double>(query().layout.sizes[3])));
  }

 private:
  Lowering& l_;
  size_t first_;
  std::optional<size_t> mask_;  // the argument
  at::DimVector sizes_;         // batch, heads, queries, keys
};

/// query, key, value, dropout_p, is_causal, attn_mask, scale: the result, and the logarithms of the
/// sums of the rows
bool attention(Lowering& l) {
  Attention a(l, 0);
  const std::optional<size_t> out = wanted_return(l, 0);
  const std::optional<size_t> logarithms = wanted_return(l, 1);
  if (!a.begin() || !out) {
    return false;
  }
  const View products = a.room();
  const View shares = a.room();
  if (!l.own_product(a.query(), transposed(a.key()), products)) {
    return false;
  }
  a.begin_rows();
  // A query that sees no key has zeros, as in eager. NaN need not be the greatest, it is in the
  // sum.
  const int32_t zero = l.constant_of(Type::f32, 0), one = l.constant_of(Type::f32, 1);
  const int32_t x = a.score(products);
  const int32_t greatest = l.make(Opcode::reduce_fmax, x);
  const int32_t nothing = l.make(Opcode::eq, greatest, l.constant_of(Type::f32, -kInfinity));
  const int32_t top = l.make(Opcode::select, nothing, zero, greatest);
  const int32_t e = l.make(Opcode::exp, l.make(Opcode::sub, x, top));
  const int32_t found = l.make(Opcode::reduce_sum, e);
  const int32_t sum = l.make(Opcode::select, l.make(Opcode::eq, found, zero), one, found);
  give(l, shares, l.make(Opcode::mul, e, l.make(Opcode::div, one, sum)));
  if (logarithms) {
    l.store(*logarithms, l.make(Opcode::add, top, l.make(Opcode::log, sum)));
  }
  l.end();
  return l.own_product(shares, a.value(), l.result_view(*out));
}

/// grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, attn_mask, scale: the
/// gradients of query, key and value
bool attention_backward(Lowering& l) {
  Attention a(l, 1);
  if (!l.is_tensor(0) || !l.is_tensor(5) || l.layout(0).dtype != at::kFloat ||
      !is_plain(l.layout(0)) || l.layout(0).sizes != l.layout(1).sizes ||
      l.layout(5).dtype != at::kFloat || !is_plain(l.layout(5)) || !a.begin()) {
    return false;
  }
  const std::optional<size_t> query = wanted_return(l, 0);
  const std::optional<size_t> key = wanted_return(l, 1);
  const std::optional<size_t> value = wanted_return(l, 2);
  const bool for_scores = query || key;
  const View grad = l.view(0);
  const View products = a.room();
  const View shares = a.room();
  const View grad_shares = a.room();
  const View grad_scores = a.room();
  if (!l.own_product(a.query(), transposed(a.key()), products) ||
      (for_scores && !l.own_product(grad, transposed(a.value()), grad_shares))) {
    return false;
  }
  // One piece that needs the gradient: else a part of it would be computed with forward, and kept.
  a.begin_rows();
  Layout logarithms = l.layout(5);
  logarithms.sizes.push_back(1);
  logarithms.strides.push_back(0);
  const int32_t logarithm = l.load_layout(slot_of(l, 5), logarithms, Type::f32);
  const int32_t p = l.make(Opcode::exp, l.make(Opcode::sub, a.score(products), logarithm));
  if (value) {
    give(l, shares, p);
  }
  if (for_scores) {
    const int32_t g = take(l, grad_shares);
    const int32_t sum = l.make(Opcode::reduce_sum, l.make(Opcode::mul, p, g));
    const int32_t changes = l.make(Opcode::mul, p, l.make(Opcode::sub, g, sum));
    give(l, grad_scores, l.make(Opcode::mul, changes, a.scale()));
  }
  l.end();
  return (!value || l.own_product(transposed(shares), grad, l.result_view(*value))) &&
         (!query || l.own_product(grad_scores, a.key(), l.result_view(*query))) &&
         (!key || l.own_product(transposed(grad_scores), a.query(), l.result_view(*key)));
}

constexpr OperatorRow kRows[] = {
    {"_scaled_dot_product_flash_attention_for_cpu", attention},
    {"_scaled_dot_product_flash_attention_for_cpu_backward", attention_backward},
};

}  // namespace

c10::ArrayRef<OperatorRow> attention_rows() {
  return kRows;
}

}  // namespace torch_lazy::compile
