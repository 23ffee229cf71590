// Values as bytes of a saved graph, and back. Reading checks everything: a file may be damaged.
#pragma once

#include <torch_lazy/layout.h>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace torch_lazy {

/// Kinds of values.
enum class ArchiveTag : uint64_t {
  none,
  integer,
  real,
  complex,
  boolean,
  text,
  device,
  integers,
  reals,
  booleans,
  list,
  wrapped_number,
  scalar_tensor,
  undefined_tensor,
};

/// A text for people: bytes that are no UTF-8 and control characters are shown as numbers, so that
/// Python can make a message of it.
std::string printable(std::string_view text);

/// A file that is damaged or hostile; the message names it.
class DamagedGraph : public c10::Error {
 public:
  using c10::Error::Error;
};

class ArchiveWriter {
 public:
  void number(uint64_t value);
  void text(std::string_view text);
  void layout(const Layout& layout);
  /// An argument of an operator that is no tensor of the graph. Raises a clear error for a kind of
  /// value that cannot be saved.
  void value(const c10::IValue& value);
  void bytes(const void* data, size_t size);

  const std::string& contents() const { return contents_; }

 private:
  std::string contents_;
};

class ArchiveReader {
 public:
  ArchiveReader(std::string_view contents, std::string file)
      : rest_(contents), file_(std::move(file)) {}

  uint64_t number();
  /// A number below `limit`.
  uint32_t index(uint64_t limit);
  /// How many things follow, each of which takes at least a byte.
  size_t count();
  std::string text();
  Layout layout();
  at::ScalarType floating_dtype();
  c10::IValue value();
  /// The next bytes, without a copy.
  std::string_view bytes(size_t size);
  bool at_end() const { return rest_.empty(); }

  /// Raises a DamagedGraph.
  [[noreturn]] void damaged(const std::string& what) const;

 private:
  at::ScalarType dtype(uint64_t word) const;
  c10::IValue scalar(ArchiveTag tag);
  at::Tensor scalar_tensor();

  std::string_view rest_;
  std::string file_;
};

}  // namespace torch_lazy
