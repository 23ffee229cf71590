// From recorded calls to the graph that is shown.
#include "ir/dump_calls.h"

#include "base/settings.h"

#include <algorithm>
#include <sstream>
#include <utility>

namespace torch_lazy {
namespace {

using Call = DumpCalls::Call;
using Operand = DumpVertex::Operand;

/// A type without the optional around it.
c10::TypePtr plain_type(c10::TypePtr type) {
  while (auto optional = type->cast<c10::OptionalType>()) {
    type = optional->getElementType();
  }
  return type;
}

/// Whether an argument is a tensor, tensors or a number: an operand in a dump.
bool is_operand(const c10::TypePtr& type) {
  switch (type->kind()) {
    case c10::TypeKind::TensorType:
    case c10::TypeKind::NumberType:
      return true;
    case c10::TypeKind::ListType:
      return plain_type(type->containedType(0))->kind() == c10::TypeKind::TensorType;
    default:
      return false;
  }
}

std::string joined(at::IntArrayRef numbers) {
  std::ostringstream out;
  for (size_t i = 0; i < numbers.size(); ++i) {
    out << (i ? " " : "") << numbers[i];
  }
  return out.str();
}

std::string text_of(const c10::IValue& value, const c10::TypePtr& type) {
  std::ostringstream out;
  if (value.isNone()) {
    out << "null";
  } else if (value.isTensor()) {
    out << text_of(value.toTensor().item(), nullptr);
  } else if (value.isBool()) {
    out << static_cast<int>(value.toBool());
  } else if (value.isDouble()) {
    out << value.toDouble();
  } else if (value.isComplexDouble()) {
    out << value.toComplexDouble();
  } else if (value.isString()) {
    out << value.toStringRef();
  } else if (value.isInt() && type && type->kind() == c10::TypeKind::ScalarTypeType) {
    out << value.toScalarType();
  } else if (value.isInt() && type && type->kind() == c10::TypeKind::LayoutType) {
    out << value.toLayout();
  } else if (value.isInt() && type && type->kind() == c10::TypeKind::MemoryFormatType) {
    out << value.toMemoryFormat();
  } else if (value.isList()) {
    const char* between = "";
    for (const c10::IValue& element : value.toList()) {
      out << between << text_of(element, nullptr);
      between = " ";
    }
  } else {
    out << value;
  }
  return out.str();
}

bool is_absent(const c10::IValue& value) {
  return value.isNone() || (value.isTensor() && !value.toTensor().defined());
}

at::ScalarType dtype_of(const c10::IValue& number) {
  return number.isTensor()          ? number.toTensor().scalar_type()
         : number.isInt()           ? at::kLong
         : number.isBool()          ? at::kBool
         : number.isComplexDouble() ? at::kComplexDouble
                                    : at::kDouble;
}

/// "step@train.py:12" of "/home/me/train.py:12 step".
std::string location_tag(const std::string& source) {
  const size_t space = source.rfind(' ');
  std::string place = source.substr(0, space);
  place.erase(0, place.rfind('/') + 1);
  return (space == std::string::npos ? "" : source.substr(space + 1)) + "@" + place;
}

/// Whether both show the same elements; how far apart those of a single-element dimension would be
/// makes no difference.
bool same_view(const Layout& a, const Layout& b) {
  if (a.sizes != b.sizes || a.offset != b.offset || a.dtype != b.dtype || a.conj != b.conj ||
      a.neg != b.neg) {
    return false;
  }
  for (size_t i = 0; i < a.sizes.size(); ++i) {
    if (a.sizes[i] > 1 && a.strides[i] != b.strides[i]) {
      return false;
    }
  }
  return true;
}

int64_t bytes_of(const Layout& layout) {
  return bytes_spanned(layout.sizes, layout.strides, layout.offset, layout.dtype);
}

bool is_by_rows(const Layout& layout) {
  int64_t stride = 1;
  for (size_t i = layout.sizes.size(); i-- > 0;) {
    if (layout.sizes[i] > 1 && layout.strides[i] != stride) {
      return false;
    }
    stride *= layout.sizes[i];
  }
  return true;
}

class Builder {
 public:
  explicit Builder(const DumpCalls& input)
      : input_(input),
        device_((settings().cuda ? "CUDA" : "CPU") + std::to_string(input.device)),
        leaf_layouts_(input.values.size(), nullptr),
        leaves_(input.values.size()),
        views_(input.values.size()) {
    choose_leaf_layouts();
    for (const Call& call : input.calls) {
      vertices_.push_back(add_call(call));
    }
    for (const DumpCalls::Root& root : input.roots) {
      const Operand shown = root.layout ? seen_as(root.value, *root.layout) : whole(root.value);
      graph_.add_root(*shown.vertex);
    }
  }

  DumpGraph graph() && { return std::move(graph_); }

 private:
  /// Data has no shape of its own: it is shown as the one sees it who sees most, if possible row by
  /// row.
  void choose_leaf_layouts() {
    auto consider = [&](size_t value, const Layout& layout) {
      const Layout*& chosen = leaf_layouts_[value];
      if (!chosen || std::pair(bytes_of(*chosen), is_by_rows(*chosen)) <
                         std::pair(bytes_of(layout), is_by_rows(layout))) {
        chosen = &layout;
      }
    };
    for (const Call& call : input_.calls) {
      for (size_t i = 0; i < call.operands.size(); ++i) {
        consider(call.operands[i], call.description->operands[i]);
      }
    }
    for (const DumpCalls::Root& root : input_.roots) {
      if (root.layout) {
        consider(root.value, *root.layout);
      }
    }
  }

  /// Null: unknown.
  const Layout* layout_of(size_t value) const {
    const DumpCalls::Value& v = input_.values[value];
    if (!v.call) {
      return leaf_layouts_[value];
    }
    const Description& d = *input_.calls[*v.call].description;
    return &d.output_layout(v.output);
  }

  Operand whole(size_t value) {
    const DumpCalls::Value& v = input_.values[value];
    if (v.call) {
      return {vertices_[*v.call], v.output};
    }
    if (!leaves_[value]) {
      const Layout* layout = layout_of(value);
      DumpVertex leaf;
      leaf.name = v.leaf;
      leaf.shapes = {layout ? layout->shape_text() : "Byte[" + std::to_string(v.nbytes) + "]"};
      leaf.tags = {{"device", device_}};
      leaves_[value] = graph_.add(std::move(leaf));
    }
    return {*leaves_[value]};
  }

  Operand seen_as(size_t value, const Layout& layout) {
    const Operand base = whole(value);
    const Layout* base_layout = layout_of(value);
    if (!base_layout || same_view(*base_layout, layout)) {
      return base;
    }
    for (const auto& [view_layout, vertex] : views_[value]) {
      if (same_view(*view_layout, layout)) {
        return {vertex};
      }
    }
    DumpVertex view;
    view.name = "lazy_tensors::view";
    view.shapes = {layout.shape_text()};
    view.operands = {base};
    view.tags = {{"size", joined(layout.sizes)},
                 {"stride", joined(layout.strides)},
                 {"storage_offset", std::to_string(layout.offset)}};
    if (layout.conj) {
      view.tags.emplace_back("conj", "1");
    }
    if (layout.neg) {
      view.tags.emplace_back("neg", "1");
    }
    const size_t vertex = graph_.add(std::move(view));
    views_[value].emplace_back(&layout, vertex);
    return {vertex};
  }

  Operand number(const c10::IValue& value, bool constant) {
    DumpVertex leaf;
    leaf.name = constant ? "prim::Constant" : "lazy_tensors::device_data";
    leaf.shapes = {std::string(c10::toString(dtype_of(value))) + "[]"};
    if (!constant) {
      leaf.tags.emplace_back("device", device_);
    }
    leaf.tags.emplace_back("value", text_of(value, nullptr));
    return {graph_.add(std::move(leaf))};
  }

  Operand list(const Call& call, const ArgumentSource& source) {
    DumpVertex list;
    list.name = "lazy_tensors::tensor_list";
    for (int element : source.elements) {
      list.operands.push_back(element == -1 ? Operand{}
                              : element < -1
                                  ? number(call.numbers[-2 - element], /*constant=*/false)
                                  : operand(call, element));
    }
    return {graph_.add(std::move(list))};
  }

  Operand operand(const Call& call, int index) {
    return seen_as(call.operands[index], call.description->operands[index]);
  }

  size_t add_call(const Call& call) {
    const Description& d = *call.description;
    DumpVertex vertex;
    vertex.name = d.op->operator_name.name;
    for (const FreshOutput& output : d.fresh) {
      vertex.shapes.push_back(output.layout.shape_text());
    }
    for (const Write& write : d.writes) {
      vertex.shapes.push_back(d.operands[write.operand].shape_text());
    }
    if (vertex.shapes.size() > 1) {
      vertex.tags.emplace_back("num_outputs", std::to_string(vertex.shapes.size()));
    }
    if (call.scope) {
      vertex.tags.emplace_back("scope", *call.scope);
    }
    if (!call.source.empty()) {
      vertex.tags.emplace_back("location", location_tag(call.source));
    }
    std::string writes;
    // A custom operator may have been removed since, and its schema with it.
    const auto handle = c10::Dispatcher::singleton().findSchema(d.op->operator_name);
    const bool has_schema = handle && *handle == d.op->handle;
    for (size_t i = 0; i < d.arguments.size(); ++i) {
      const c10::Argument* argument = has_schema ? &handle->schema().arguments()[i] : nullptr;
      add_argument(vertex, call, d.arguments[i], argument);
      if (is_written(d, d.arguments[i])) {
        writes += (writes.empty() ? "" : " ") + std::to_string(vertex.operands.size() - 1);
      }
    }
    if (!writes.empty()) {
      vertex.tags.emplace_back("writes", writes);
    }
    return graph_.add(std::move(vertex));
  }

  static bool is_written(const Description& d, const ArgumentSource& source) {
    return std::any_of(d.writes.begin(), d.writes.end(), [&](const Write& write) {
      return (source.kind == ArgumentSource::Kind::operand && source.index == write.operand) ||
             std::find(source.elements.begin(), source.elements.end(), write.operand) !=
                 source.elements.end();
    });
  }

  void add_argument(DumpVertex& vertex, const Call& call, const ArgumentSource& source,
                    const c10::Argument* argument) {
    const c10::TypePtr type = argument ? plain_type(argument->real_type()) : c10::AnyType::get();
    switch (source.kind) {
      case ArgumentSource::Kind::operand:
        vertex.operands.push_back(operand(call, source.index));
        return;
      case ArgumentSource::Kind::operand_list:
      case ArgumentSource::Kind::optional_list:
        vertex.operands.push_back(list(call, source));
        return;
      case ArgumentSource::Kind::number:
        break;
      case ArgumentSource::Kind::constant:
        if (is_operand(type) && is_absent(source.value)) {
          return;
        }
        break;
    }
    const bool constant = source.kind == ArgumentSource::Kind::constant;
    const c10::IValue& value = constant ? source.value : call.numbers[source.index];
    if (is_operand(type) && (value.isScalar() || value.isTensor())) {
      vertex.operands.push_back(number(value, constant));
    } else {
      vertex.tags.emplace_back(argument ? argument->name() : "argument", text_of(value, type));
    }
  }

  const DumpCalls& input_;
  std::string device_;
  DumpGraph graph_;
  std::vector<size_t> vertices_;                                      // of calls
  std::vector<const Layout*> leaf_layouts_;                           // by value
  std::vector<std::optional<size_t>> leaves_;                         // by value: its vertex
  std::vector<std::vector<std::pair<const Layout*, size_t>>> views_;  // by value
};

}  // namespace

size_t append_graph(DumpCalls& calls, const Graph& graph, c10::ArrayRef<c10::IValue> numbers) {
  const size_t first = calls.values.size();
  calls.values.resize(first + graph.slots);
  for (const Parameter& parameter : graph.parameters) {
    DumpCalls::Value& value = calls.values[first + parameter.slot];
    value.leaf = parameter.fresh ? "lazy_tensors::undefined" : "lazy_tensors::device_data";
    value.nbytes = parameter.nbytes;
  }
  for (const GraphNode& node : graph.nodes) {
    Call call;
    call.description = node.description;
    for (uint32_t slot : node.operands) {
      call.operands.push_back(first + slot);
    }
    const c10::ArrayRef<c10::IValue> own =
        numbers.slice(node.first_number, static_cast<size_t>(node.description->numbers));
    call.numbers.assign(own.begin(), own.end());
    for (size_t output = 0; output < node.outputs.size(); ++output) {
      if (node.outputs[output] >= 0) {
        DumpCalls::Value& value = calls.values[first + static_cast<size_t>(node.outputs[output])];
        value.call = calls.calls.size();
        value.output = output;
      }
    }
    calls.calls.push_back(std::move(call));
  }
  return first;
}

DumpGraph make_dump_graph(const DumpCalls& calls) {
  return Builder(calls).graph();
}

}  // namespace torch_lazy
