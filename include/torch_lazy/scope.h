// Names for what a program records: scopes, which appear in dumps of graphs (setting
// TORCH_LAZY_IR_DEBUG), and places in a C++ program's source, which appear in errors, reports and
// dumps as the lines of a Python program do.
//
//   torch_lazy::ScopePusher scope("encoder");  // encoder.1, inside another scope outer.1/encoder.1
//   torch_lazy::SourceScope here;              // this function, file and line
#pragma once

#include <torch_lazy/export.h>

#include <source_location>
#include <string>
#include <vector>

namespace torch_lazy {

/// A scope of this thread, open until the end of the C++ block. Scopes are numbered in the order in
/// which they are opened inside their parent, from 1.
class TORCH_LAZY_API ScopePusher {
 public:
  explicit ScopePusher(const std::string& name);
  ~ScopePusher();
  ScopePusher(const ScopePusher&) = delete;
  ScopePusher& operator=(const ScopePusher&) = delete;
};

/// The open scopes of this thread, like "model.1/layer.2"; empty outside of any.
TORCH_LAZY_API std::string current_scope();

/// Starts numbering from 1 again, as the end of a step does. A scope that is still open is an
/// error.
TORCH_LAZY_API void reset_scopes();

struct SourceLocation {
  std::string function;
  std::string file;
  int line = -1;
};

/// Says where in a C++ program this thread is, until the end of the block.
class TORCH_LAZY_API SourceScope {
 public:
  explicit SourceScope(const std::source_location& here = std::source_location::current());
  ~SourceScope();
  SourceScope(const SourceScope&) = delete;
  SourceScope& operator=(const SourceScope&) = delete;
};

/// Where this thread is, innermost first: its SourceScopes, then the frames of Python. Without
/// either, one entry whose file is "No Python Frames".
TORCH_LAZY_API std::vector<SourceLocation> source_frames();

/// The outermost of these frames that belongs to no installed package, as "file function line";
/// empty without one.
TORCH_LAZY_API std::string first_user_frame();

}  // namespace torch_lazy
