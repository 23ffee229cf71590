// The graph behind values, for people: text and dot.
#pragma once

#include "ir/node.h"
#include <torch_lazy/graph.h>

#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>
#include <c10/util/ArrayRef.h>

#include <string>

namespace torch_lazy {

enum class DumpFormat : uint8_t { text, dot };

/// The graph behind the current values of buffers, which are its roots in this order: what is
/// recorded, or, of a value that was read, the graph that computed it. `layouts`, one for each or
/// none, say how tensors lie in the buffers. These take the graph lock.
std::string dump_text(c10::ArrayRef<Buffer*> roots, c10::ArrayRef<Layout> layouts = {});
std::string dump_dot(c10::ArrayRef<Buffer*> roots, c10::ArrayRef<Layout> layouts = {});

/// A graph that is about to run on these numbers; `nodes`, those that it was made of, say from
/// where in the program they are.
std::string dump_graph(const Graph& graph, c10::ArrayRef<c10::IValue> numbers,
                       c10::ArrayRef<Node*> nodes, c10::DeviceIndex device, DumpFormat format);

}  // namespace torch_lazy
