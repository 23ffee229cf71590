// The form of files of saved graphs: a magic word, the form's number, an archive (replay/archive.h)
// and a checksum of all that.
#pragma once

#include <torch_lazy/layout.h>

#include <cstdint>
#include <string_view>

namespace torch_lazy {

inline constexpr std::string_view kGraphMagic = "TLgraph\n";
inline constexpr uint64_t kGraphForm = 1;

/// A whole memory as bytes.
inline Layout bytes_layout(int64_t nbytes) {
  Layout layout;
  layout.sizes = {nbytes};
  layout.strides = {1};
  layout.dtype = at::kByte;
  return layout;
}

}  // namespace torch_lazy
