// The pending graph behind values, for people: text and dot.
#pragma once

#include "ir/node.h"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/ArrayRef.h>

#include <string>

namespace torch_lazy {

enum class DumpFormat : uint8_t { text, dot };

/// The graph behind values, which are its roots in this order. `layouts`, one for each or none, say
/// how tensors lie in them; null values are memory that nothing was written to. Needs the graph
/// lock, and a BelowModes taken before it.
std::string dump_values(c10::ArrayRef<const Value*> roots, c10::ArrayRef<Layout> layouts,
                        DumpFormat format);

/// The graph behind the current values of buffers. These take the graph lock.
std::string dump_text(c10::ArrayRef<Buffer*> roots, c10::ArrayRef<Layout> layouts = {});
std::string dump_dot(c10::ArrayRef<Buffer*> roots, c10::ArrayRef<Layout> layouts = {});

/// Reading a zero-dim CPU tensor dispatches, and a Python mode must not run under the graph lock.
struct BelowModes {
  c10::impl::ForceDispatchKeyGuard keys{
      c10::DispatchKeySet(c10::DispatchKey::BackendSelect),
      c10::default_excluded_set | c10::autograd_dispatch_keyset_with_ADInplaceOrView};
};

}  // namespace torch_lazy
