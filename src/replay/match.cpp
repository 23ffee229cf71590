// Whether the tensors of a call are of the kind that was recorded. One that is as it was in the
// call before is recognised by its bytes.
#include "capture/tensor.h"
#include "replay/recording.h"
#include "replay/replay_data.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cstring>
#include <typeinfo>
#include <unordered_map>
#include <utility>

namespace torch_lazy {
namespace {

using Block = uint64_t __attribute__((vector_size(16)));

Block block_at(const char* bytes) {
  Block block;
  std::memcpy(&block, bytes, sizeof(block));
  return block;
}

/// The last block may overlap the one before it.
constexpr size_t kBlocks = (BoundTensor::kBytes + sizeof(Block) - 1) / sizeof(Block);
constexpr size_t block_offset(size_t i) {
  return std::min(i * sizeof(Block), BoundTensor::kBytes - sizeof(Block));
}

/// Quicker than memcmp, which decides after every block.
template <size_t... i>
bool are_equal(const char* a, const char* b, std::index_sequence<i...> /*blocks*/) {
  Block difference = {};
  ((difference |= block_at(a + block_offset(i)) ^ block_at(b + block_offset(i))), ...);
  return (difference[0] | difference[1]) == 0;
}

const char* bytes_of(const c10::TensorImpl& impl) {
  return reinterpret_cast<const char*>(&impl) + sizeof(c10::intrusive_ptr_target);
}

/// Whether all that a tensor is, besides its memory and its part in autograd, are its bytes.
bool is_its_bytes(const c10::TensorImpl& impl) {
  return typeid(impl) == typeid(c10::TensorImpl) && !impl.key_set().has(c10::DispatchKey::Python) &&
         !impl.has_symbolic_sizes_strides() && impl.dim() <= C10_SIZES_AND_STRIDES_MAX_INLINE_SIZE;
}

bool fits_autograd(const KnownTensor& recorded, const torch::autograd::AutogradMeta& autograd) {
  const bool leaf = !autograd.grad_fn_;
  const bool requires_grad = !leaf || autograd.requires_grad_;
  return requires_grad == recorded.requires_grad && leaf == recorded.leaf &&
         has_hooks(autograd) == recorded.hooks && !has_tangent(autograd);
}

/// Whether nothing but its part in autograd and the content of its buffer can have changed. What a
/// pointer leads to is looked at once the tensor has been seen to still have it.
bool is_bound(const at::Tensor& tensor, const BoundTensor& bound) {
  return tensor.unsafeGetTensorImpl() == bound.impl &&
         are_equal(bytes_of(*bound.impl), bound.bytes.data(),
                   std::make_index_sequence<kBlocks>()) &&
         bound.storage->data_ptr().get_context() == bound.buffer &&
         bound.storage->data_ptr().get_deleter() == &free_buffer;
}

/// Looks at everything. False: it is of another kind.
bool bind(const at::Tensor& tensor, const KnownTensor& recorded, BoundTensor& bound) {
  bound.impl = nullptr;
  if (!is_lazy(tensor) || tensor.device().index() != recorded.device ||
      !recorded.layout.matches(tensor)) {
    return false;
  }
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  bound.autograd = static_cast<const torch::autograd::AutogradMeta*>(impl.autograd_meta());
  if (!bound.autograd && (recorded.requires_grad || !recorded.leaf || recorded.grad >= 0)) {
    return false;
  }
  bound.place = recorded.buffer;
  bound.buffer = own_buffer(tensor);
  if (!bound.buffer) {
    return false;
  }
  if (is_its_bytes(impl)) {
    bound.impl = &impl;
    bound.storage = impl.unsafe_storage().unsafeGetStorageImpl();
    bound.value = bound.buffer->current;
    std::memcpy(bound.bytes.data(), bytes_of(impl), sizeof(bound.bytes));
  }
  return true;
}

class Matching {
 public:
  Matching(const Recording& recording, ReplayTensors& tensors) : r_(recording), t_(tensors) {
    t_.known.resize(r_.known.size());
    t_.bound.resize(r_.known.size());
    t_.versions.resize(r_.known.size());
    t_.buffers.assign(r_.after.size(), nullptr);
  }

  /// Gradients come after the tensors that have them. Local pointers: the compiler cannot know that
  /// nothing written here changes the vectors.
  bool all_fit() {
    const auto number = static_cast<uint32_t>(r_.known.size());
    const at::Tensor* const* known = t_.known.data();
    const BoundTensor* bound = t_.bound.data();
    for (uint32_t i = 0; i < number; ++i, ++known, ++bound) {
      if (i + 2 * kAhead < number) {
        __builtin_prefetch(known[2 * kAhead]);
        __builtin_prefetch(bound[kAhead].impl);
        __builtin_prefetch(bound[kAhead].value);
      }
      if (!is_bound(**known, *bound) && !bind(i)) [[unlikely]] {
        return false;
      }
      if ((bound->autograd && !autograd_fits(i)) || !enter(*bound)) {
        return false;
      }
    }
    return true;
  }

 private:
  C10_NOINLINE bool bind(uint32_t i) {
    const at::Tensor& tensor = *t_.known[i];
    t_.versions[i] = tensor.unsafeGetTensorImpl()->version_counter();
    return torch_lazy::bind(tensor, r_.known[i], t_.bound[i]);
  }

  /// Also whether it has a gradient if it had one, which is then among the known tensors.
  bool autograd_fits(uint32_t i) {
    const KnownTensor& recorded = r_.known[i];
    const torch::autograd::AutogradMeta& autograd = *t_.bound[i].autograd;
    if (!fits_autograd(recorded, autograd)) {
      return false;
    }
    if (!recorded.leaf || i >= r_.given) {
      return true;
    }
    const at::Tensor& gradient = autograd.grad_;
    if (recorded.grad >= 0) {
      t_.known[recorded.grad] = &gradient;
    }
    return gradient.defined() == (recorded.grad >= 0);
  }

  /// Its buffer is the recorded one: shared by the same tensors as then, with as much content.
  bool enter(const BoundTensor& bound) {
    Buffer& buffer = *bound.buffer;
    Buffer*& entered = t_.buffers[bound.place];
    if (entered) {
      return entered == &buffer;
    }
    if (buffer.epoch == epoch_) {
      return false;  // shares memory with a tensor that it did not share it with
    }
    buffer.epoch = epoch_;
    entered = &buffer;
    const bool undefined = !buffer.current || buffer.current->undefined();
    return (undefined == static_cast<bool>(r_.undefined[bound.place]) ||
            buffer.replay == Buffer::Replay::writes) &&  // has its data at present
           buffer.nbytes == r_.nbytes[bound.place];
  }

  const Recording& r_;
  ReplayTensors& t_;
  GraphLock lock_;
  const uint64_t epoch_ = Program::instance().next_epoch();
};

}  // namespace

bool has_hooks(const torch::autograd::AutogradMeta& autograd) {
  if (!autograd.hooks_.empty() || autograd.post_acc_grad_hooks_ || autograd.cpp_hooks_list_) {
    return true;
  }
  return accumulator_has_hooks(autograd);
}

bool accumulator_has_hooks(const torch::autograd::AutogradMeta& autograd) {
  const auto accumulator = autograd.grad_accumulator_.lock();  // mostly none: no graph is alive
  return accumulator && (!accumulator->pre_hooks().empty() || !accumulator->post_hooks().empty() ||
                         !accumulator->tensor_pre_hooks().empty());
}

bool has_tangent(const torch::autograd::AutogradMeta& autograd) {
  return autograd.fw_grad_ && !autograd.fw_grad_->empty();
}

bool share_storage(const at::Tensor& a, const at::Tensor& b) {
  return a.has_storage() && b.has_storage() && a.is_alias_of(b);
}

namespace {

/// Whether those host tensors are one, and those share memory, that were recorded so.
bool hosts_relate_as_recorded(const Recording& recording, const ReplayTensors& tensors) {
  std::unordered_map<const void*, uint32_t> first_of;  // tensors and storages
  for (uint32_t i = 0; i < tensors.hosts.size(); ++i) {
    const at::Tensor& host = *tensors.hosts[i];
    const HostTensor& recorded = recording.hosts[i];
    const uint32_t same = first_of.try_emplace(host.unsafeGetTensorImpl(), i).first->second;
    const uint32_t storage =
        host.has_storage()
            ? first_of.try_emplace(host.storage().unsafeGetStorageImpl(), i).first->second
            : i;
    if (same != recorded.same || storage != recorded.storage) {
      return false;
    }
  }
  return true;
}

bool hosts_match(const Recording& recording, const ReplayTensors& tensors) {
  for (uint32_t i = 0; i < tensors.hosts.size(); ++i) {
    const HostTensor& recorded = recording.hosts[i];
    const at::Tensor& host = *tensors.hosts[i];
    if (host.device() != recorded.device || !recorded.layout.matches(host) ||
        host.requires_grad() != recorded.requires_grad ||
        (host.is_leaf() && host.grad().defined()) != recorded.has_grad ||
        (recorded.nbytes > 0 && static_cast<int64_t>(host.storage().nbytes()) < recorded.nbytes)) {
      return false;
    }
  }
  return tensors.hosts.size() < 2 || hosts_relate_as_recorded(recording, tensors);
}

/// Whether those of the known tensors that were one are one, and those that only look the same are
/// not.
bool identities_match(const Recording& recording, const ReplayTensors& tensors) {
  auto are_one = [&](const TensorPair& pair) {
    return tensors.known[pair.first]->is_same(*tensors.known[pair.second]);
  };
  return std::all_of(recording.same.begin(), recording.same.end(), are_one) &&
         std::none_of(recording.distinct.begin(), recording.distinct.end(), are_one);
}

}  // namespace

bool matches(const Recording& recording, ReplayTensors& tensors) {
  return tensors.known.size() == recording.given &&
         tensors.hosts.size() == recording.hosts.size() && hosts_match(recording, tensors) &&
         Matching(recording, tensors).all_fit() && identities_match(recording, tensors);
}

}  // namespace torch_lazy
