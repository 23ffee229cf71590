// Comparing recordings.
#include "replay/recording.h"

#include "runtime/real_tensor.h"
#include <torch_lazy/backend.h>

#include <ATen/ops/equal.h>
#include <ATen/ops/scalar_tensor.h>

#include <cstring>
#include <sstream>

namespace torch_lazy {
namespace {

bool same_scalar(const c10::Scalar& a, const c10::Scalar& b) {
  if (a.type() != b.type()) {
    return false;
  }
  if (a.isFloatingPoint()) {
    const double x = a.toDouble();
    const double y = b.toDouble();
    return std::memcmp(&x, &y, sizeof(x)) == 0;
  }
  if (a.isComplex()) {
    const auto x = a.toComplexDouble();
    const auto y = b.toComplexDouble();
    return std::memcmp(&x, &y, sizeof(x)) == 0;
  }
  return a.equal(b.toLong());
}

bool same_value(const c10::IValue& a, const c10::IValue& b) {
  if (a.isTensor() && b.isTensor()) {
    return a.toTensor().scalar_type() == b.toTensor().scalar_type() &&
           same_scalar(a.toTensor().item(), b.toTensor().item());
  }
  if (a.isScalar() && b.isScalar()) {
    return same_scalar(a.toScalar(), b.toScalar());
  }
  if (a.isList() && b.isList()) {
    const auto x = a.toListRef();
    const auto y = b.toListRef();
    return x.size() == y.size() && std::equal(x.begin(), x.end(), y.begin(), same_value);
  }
  return a.tagKind() == b.tagKind() && (a.isNone() || a.is(b) || a == b);
}

std::string call_at(const Recording& r, size_t node) {
  std::string text = r.plan->graph->nodes[node].description->call_text();
  return r.lines[node].empty() ? text : text + " (" + r.lines[node] + ")";
}

/// The first call in which two graphs differ.
std::string graph_difference(const Recording& a, const Recording& b) {
  const auto& first = a.plan ? a.plan->graph->nodes : std::vector<GraphNode>();
  const auto& second = b.plan ? b.plan->graph->nodes : std::vector<GraphNode>();
  for (size_t i = 0; i < std::min(first.size(), second.size()); ++i) {
    if (first[i].description != second[i].description || first[i].operands != second[i].operands) {
      if (call_at(a, i) == call_at(b, i)) {
        return call_at(a, i) +
               " is called with tensors that lie differently in their memory, such as other "
               "parts of one tensor; pass copies (.clone())";
      }
      return "one call makes " + call_at(a, i) + ", another " + call_at(b, i);
    }
  }
  if (first.size() != second.size()) {
    const bool longer = first.size() > second.size();
    return "only one of two calls makes " +
           call_at(longer ? a : b, std::min(first.size(), second.size()));
  }
  return "other tensors are alive after it";
}

bool same_draw(const Draw& a, const Draw& b) {
  return a.op == b.op && a.layout == b.layout && a.nbytes == b.nbytes &&
         std::equal(a.arguments.begin(), a.arguments.end(), b.arguments.begin(), b.arguments.end(),
                    same_value);
}

bool same_data(const HostData& a, const HostData& b) {
  if (a.argument != b.argument || !(a.layout == b.layout) || a.nbytes != b.nbytes) {
    return false;
  }
  if (a.argument >= 0) {
    return a.source == b.source;
  }
  auto bytes = [](const HostData& data) {
    return real_tensor(data.constant, bytes_layout(data.nbytes));
  };
  BelowEverything below;
  return at::equal(bytes(a), bytes(b));
}

}  // namespace

std::string Recording::number_place(size_t number) const {
  const auto& nodes = plan->graph->nodes;
  size_t node = 0;
  while (node + 1 < nodes.size() && nodes[node + 1].first_number <= number) {
    ++node;
  }
  std::ostringstream out;
  out << "the number ";
  if (numbers[number].isList()) {
    out << numbers[number];
  } else {
    out << number_value(numbers[number]);
  }
  out << " given to " << call_at(*this, node);
  return out.str();
}

std::string difference(const Recording& a, const Recording& b) {
  if (a.signature != b.signature) {
    return graph_difference(a, b);
  }
  if (a.known != b.known || a.hosts != b.hosts || a.undefined != b.undefined ||
      a.nbytes != b.nbytes || a.same != b.same || a.distinct != b.distinct) {
    return "it is called with tensors that lie differently in their memory, such as other parts of "
           "one tensor; pass copies (.clone())";
  }
  if (a.parameters != b.parameters) {
    return "it reads other tensors";
  }
  if (!std::equal(a.draws.begin(), a.draws.end(), b.draws.begin(), b.draws.end(), same_draw)) {
    return "it draws other random numbers";
  }
  if (!std::equal(a.uploads.begin(), a.uploads.end(), b.uploads.begin(), b.uploads.end(),
                  same_data)) {
    return "it brings other data to the device";
  }
  if (a.after != b.after || a.made != b.made || a.gradients != b.gradients) {
    return "it leaves other tensors changed";
  }
  if (a.results != b.results) {
    return "its results are of another kind";
  }
  return "";
}

std::vector<uint32_t> different_numbers(const Recording& a, const Recording& b) {
  std::vector<uint32_t> different;
  for (uint32_t i = 0; i < std::min(a.numbers.size(), b.numbers.size()); ++i) {
    if (!same_value(a.numbers[i], b.numbers[i])) {
      different.push_back(i);
    }
  }
  return different;
}

bool is_double(const c10::IValue& number) {
  return !number.isList() && number_value(number).isFloatingPoint();
}

c10::IValue number_like(const c10::IValue& recorded, double number) {
  if (recorded.isDouble()) {
    return number;
  }
  TORCH_INTERNAL_ASSERT(is_double(recorded), "only floating-point numbers follow a rule");
  if (!recorded.isTensor()) {
    return c10::Scalar(number);
  }
  const at::Tensor& before = recorded.toTensor();
  at::Tensor after = at::scalar_tensor(number, before.options());
  after.unsafeGetTensorImpl()->set_wrapped_number(
      before.unsafeGetTensorImpl()->is_wrapped_number());
  return after;
}

}  // namespace torch_lazy
