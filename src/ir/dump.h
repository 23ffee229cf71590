// The pending graph behind values, for people: text and dot.
#pragma once

#include "ir/node.h"

#include <c10/util/ArrayRef.h>

#include <string>

namespace torch_lazy {

/// Both take the graph lock.
std::string dump_text(c10::ArrayRef<Buffer*> roots);
std::string dump_dot(c10::ArrayRef<Buffer*> roots);

}  // namespace torch_lazy
