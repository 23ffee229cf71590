// From recorded nodes to the graph that is shown. Arguments appear as in PyTorch's Lazy Tensor
// Core: tensors and numbers are operands, everything else is a tag. A view that an operand is read
// through makes no node, but has a vertex of its own here.
#include "ir/dump.h"

#include "base/settings.h"
#include "ir/dump_graph.h"

#include <algorithm>
#include <sstream>
#include <unordered_map>
#include <utility>

namespace torch_lazy {
namespace {

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
  Builder(c10::ArrayRef<const Value*> roots, c10::ArrayRef<Layout> layouts)
      : device_(settings().cuda ? "CUDA0" : "CPU0") {
    for (const Value* root : roots) {
      reach(root);
    }
    std::sort(nodes_.begin(), nodes_.end(),
              [](const Node* a, const Node* b) { return a->sequence < b->sequence; });
    choose_leaf_layouts(roots, layouts);
    for (const Node* node : nodes_) {
      add_node(*node);
    }
    for (size_t i = 0; i < roots.size(); ++i) {
      const Layout* layout = layouts.empty() ? nullptr : &layouts[i];
      graph_.add_root(!roots[i] ? leaf("lazy_tensors::undefined", layout, 0)
                      : layout  ? *seen_as(roots[i], *layout).vertex
                                : *whole(roots[i]).vertex);
    }
  }

  const DumpGraph& graph() const { return graph_; }

 private:
  void reach(const Value* root) {
    std::vector<const Value*> stack{root};
    while (!stack.empty()) {
      const Value* value = stack.back();
      stack.pop_back();
      if (value && value->producer && vertices_.emplace(value->producer, 0).second) {
        nodes_.push_back(value->producer);
        stack.insert(stack.end(), value->producer->operands.begin(),
                     value->producer->operands.end());
      }
    }
  }

  /// Data has no shape of its own: it is shown as the one sees it who sees most, if possible row by
  /// row.
  void choose_leaf_layouts(c10::ArrayRef<const Value*> roots, c10::ArrayRef<Layout> layouts) {
    auto consider = [&](const Value* value, const Layout& layout) {
      const Layout*& chosen = leaf_layouts_[value];
      if (!chosen || std::pair(bytes_of(*chosen), is_by_rows(*chosen)) <
                         std::pair(bytes_of(layout), is_by_rows(layout))) {
        chosen = &layout;
      }
    };
    for (const Node* node : nodes_) {
      for (size_t i = 0; i < node->operands.size(); ++i) {
        consider(node->operands[i], node->description->operands[i]);
      }
    }
    for (size_t i = 0; i < layouts.size(); ++i) {
      consider(roots[i], layouts[i]);
    }
  }

  const Layout* layout_of(const Value* value) const {
    if (!value->producer) {
      auto chosen = leaf_layouts_.find(value);
      return chosen == leaf_layouts_.end() ? nullptr : chosen->second;
    }
    const Description& d = *value->producer->description;
    const size_t output = static_cast<size_t>(value->output);
    return output < d.fresh.size() ? &d.fresh[output].layout
                                   : &d.operands[d.writes[output - d.fresh.size()].operand];
  }

  Operand whole(const Value* value) {
    if (value->producer) {
      return {vertices_.at(value->producer), static_cast<size_t>(value->output)};
    }
    auto known = vertices_.find(value);
    if (known == vertices_.end()) {
      const char* name = value->data      ? "lazy_tensors::device_data"
                         : value->failure ? "lazy_tensors::failed"
                                          : "lazy_tensors::undefined";
      known = vertices_.emplace(value, leaf(name, layout_of(value), value->nbytes)).first;
    }
    return {known->second};
  }

  size_t leaf(const char* name, const Layout* layout, int64_t nbytes) {
    DumpVertex leaf;
    leaf.name = name;
    leaf.shapes = {layout ? layout->shape_text() : "Byte[" + std::to_string(nbytes) + "]"};
    leaf.tags = {{"device", device_}};
    return graph_.add(std::move(leaf));
  }

  Operand seen_as(const Value* value, const Layout& layout) {
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

  Operand list(const Node& node, const ArgumentSource& source) {
    DumpVertex list;
    list.name = "lazy_tensors::tensor_list";
    for (int element : source.elements) {
      list.operands.push_back(element == -1 ? Operand{}
                              : element < -1
                                  ? number(node.numbers[-2 - element], /*constant=*/false)
                                  : operand(node, element));
    }
    return {graph_.add(std::move(list))};
  }

  Operand operand(const Node& node, int index) {
    return seen_as(node.operands[index], node.description->operands[index]);
  }

  void add_node(const Node& node) {
    const Description& d = *node.description;
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
    if (node.scope) {
      vertex.tags.emplace_back("scope", *node.scope);
    }
    if (!node.source.empty()) {
      vertex.tags.emplace_back("location", location_tag(node.source));
    }
    std::string writes;
    // A custom operator may have been removed since, and its schema with it.
    const auto handle = c10::Dispatcher::singleton().findSchema(d.op->operator_name);
    const bool has_schema = handle && *handle == d.op->handle;
    for (size_t i = 0; i < d.arguments.size(); ++i) {
      const c10::Argument* argument = has_schema ? &handle->schema().arguments()[i] : nullptr;
      add_argument(vertex, node, d.arguments[i], argument);
      if (is_written(d, d.arguments[i])) {
        writes += (writes.empty() ? "" : " ") + std::to_string(vertex.operands.size() - 1);
      }
    }
    if (!writes.empty()) {
      vertex.tags.emplace_back("writes", writes);
    }
    vertices_[&node] = graph_.add(std::move(vertex));
  }

  static bool is_written(const Description& d, const ArgumentSource& source) {
    return std::any_of(d.writes.begin(), d.writes.end(), [&](const Write& write) {
      return (source.kind == ArgumentSource::Kind::operand && source.index == write.operand) ||
             std::find(source.elements.begin(), source.elements.end(), write.operand) !=
                 source.elements.end();
    });
  }

  void add_argument(DumpVertex& vertex, const Node& node, const ArgumentSource& source,
                    const c10::Argument* argument) {
    const c10::TypePtr type = argument ? plain_type(argument->real_type()) : c10::AnyType::get();
    switch (source.kind) {
      case ArgumentSource::Kind::operand:
        vertex.operands.push_back(operand(node, source.index));
        return;
      case ArgumentSource::Kind::operand_list:
      case ArgumentSource::Kind::optional_list:
        vertex.operands.push_back(list(node, source));
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
    const c10::IValue& value = constant ? source.value : node.numbers[source.index];
    if (is_operand(type) && (value.isScalar() || value.isTensor())) {
      vertex.operands.push_back(number(value, constant));
    } else {
      vertex.tags.emplace_back(argument ? argument->name() : "argument", text_of(value, type));
    }
  }

  std::string device_;
  DumpGraph graph_;
  std::vector<const Node*> nodes_;
  std::unordered_map<const void*, size_t> vertices_;  // of nodes, and of values that are leaves
  std::unordered_map<const Value*, const Layout*> leaf_layouts_;
  std::unordered_map<const Value*, std::vector<std::pair<const Layout*, size_t>>> views_;
};

std::string dump_buffers(c10::ArrayRef<Buffer*> roots, c10::ArrayRef<Layout> layouts,
                         DumpFormat format) {
  BelowModes below;
  GraphLock lock;
  std::vector<const Value*> values;
  for (const Buffer* buffer : roots) {
    values.push_back(buffer->current);
  }
  return dump_values(values, layouts, format);
}

}  // namespace

std::string dump_values(c10::ArrayRef<const Value*> roots, c10::ArrayRef<Layout> layouts,
                        DumpFormat format) {
  const Builder builder(roots, layouts);
  return format == DumpFormat::text ? builder.graph().text() : builder.graph().dot();
}

std::string dump_text(c10::ArrayRef<Buffer*> roots, c10::ArrayRef<Layout> layouts) {
  return dump_buffers(roots, layouts, DumpFormat::text);
}

std::string dump_dot(c10::ArrayRef<Buffer*> roots, c10::ArrayRef<Layout> layouts) {
  return dump_buffers(roots, layouts, DumpFormat::dot);
}

}  // namespace torch_lazy
