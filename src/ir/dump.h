// The graph behind values, for people: text and dot.
#pragma once

#include "ir/node.h"

#include <c10/util/ArrayRef.h>

#include <string>

namespace torch_lazy {

enum class DumpFormat : uint8_t { text, dot };

// All take the graph lock, for as long as they need to copy what is recorded.

/// The graph behind the current values of buffers, which are its roots in this order. `layouts`,
/// one for each or none, say how tensors lie in them.
std::string dump_text(c10::ArrayRef<Buffer*> roots, c10::ArrayRef<Layout> layouts = {});
std::string dump_dot(c10::ArrayRef<Buffer*> roots, c10::ArrayRef<Layout> layouts = {});

/// The graph behind values that the caller holds.
std::string dump_values(c10::ArrayRef<const Value*> roots, DumpFormat format);

}  // namespace torch_lazy
