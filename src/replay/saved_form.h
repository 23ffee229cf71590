// The form of files of saved graphs: a magic word, the form's number, an archive (replay/archive.h)
// and a checksum of all that.
#pragma once

#include <cstdint>
#include <string_view>

namespace torch_lazy {

inline constexpr std::string_view kGraphMagic = "TLgraph\n";
inline constexpr uint64_t kGraphForm = 2;

}  // namespace torch_lazy
