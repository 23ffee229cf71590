// What both kinds of replays share: data that is made anew in every call, and errors.
#pragma once

#include "replay/recording.h"

#include <exception>
#include <memory>

namespace torch_lazy {

/// How many steps ahead of its use memory is fetched by loops over all tensors, which lie apart.
constexpr uint32_t kAhead = 4;

/// Random numbers of the recorded kinds, and data from the host.
class FreshData {
 public:
  FreshData(const Recording& recording, c10::ArrayRef<const at::Tensor*> hosts);

  /// Empty for content that is not fresh.
  c10::Storage of(const Content& content) const {
    return content.kind == Content::Kind::draw     ? drawn_[content.index]
           : content.kind == Content::Kind::upload ? uploaded_[content.index]
                                                   : c10::Storage();
  }

 private:
  std::vector<c10::Storage> drawn_;
  std::vector<c10::Storage> uploaded_;
};

/// Data from the host as it is now, in new memory.
c10::Storage upload_again(const HostData& data, c10::ArrayRef<const at::Tensor*> hosts);

/// The error of a run, with the call that was recorded.
std::shared_ptr<Failure> failure_of(const Recording& recording, const Run& run,
                                    const std::exception_ptr& error);

}  // namespace torch_lazy
