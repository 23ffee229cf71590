// Scopes and source locations as the core sees them: what a recorded node keeps of them.
#pragma once

#include <torch_lazy/scope.h>

#include <memory>
#include <string>

namespace torch_lazy {

/// The user's line to keep with a node that is recorded now; empty unless TORCH_LAZY_SOURCE_LINES
/// or TORCH_LAZY_IR_DEBUG ask for it. Not under the graph lock: it may take the interpreter's.
std::string source_for_node();

/// Keeps the lines of what this thread records, whatever the settings say.
void keep_source_lines(bool keep);

/// The scope to keep with it; null outside of scopes, or unless TORCH_LAZY_IR_DEBUG asks for it.
/// Nodes of one scope share the text.
std::shared_ptr<const std::string> scope_for_node();

/// "file:line function" of the innermost SourceScope of this thread; empty without one.
std::string innermost_source_scope();

/// For languages whose blocks are not C++'s.
TORCH_LAZY_API void push_scope(const std::string& name);
TORCH_LAZY_API void pop_scope();

}  // namespace torch_lazy
