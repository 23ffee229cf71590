// Data that a replay makes anew in every call.
#pragma once

#include "replay/recording.h"

namespace torch_lazy {

/// Random numbers of the recorded kind, from the same generator.
c10::Storage draw_again(const Draw& draw);

/// Data from one of the host tensors, or a copy of what is the same in every call.
c10::Storage upload_again(const HostData& data, c10::ArrayRef<const at::Tensor*> hosts);

}  // namespace torch_lazy
