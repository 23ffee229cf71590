// Recording a graph over the memory of plain tensors, and running it there.
#include "replay/plain_call.h"

#include "base/metrics.h"
#include "capture/tensor.h"
#include "replay/replay_data.h"
#include "runtime/backend_choice.h"
#include "runtime/executor.h"
#include "runtime/failure.h"
#include "runtime/queue.h"
#include "runtime/real_tensor.h"

#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <unordered_map>

namespace torch_lazy {
namespace {

int64_t offset_in_bytes(const at::Tensor& tensor) {
  return tensor.storage_offset() * static_cast<int64_t>(tensor.element_size());
}

int64_t bytes_of(const at::Tensor& tensor) {
  return bytes_spanned(tensor.sizes(), tensor.strides(), 0, tensor.scalar_type());
}

/// The part of a storage of the real device that a tensor lies in. The storage has to outlive it.
c10::Storage part_of(const c10::Storage& storage, const at::Tensor& tensor) {
  const int64_t nbytes = bytes_of(tensor);
  if (tensor.storage_offset() == 0 && static_cast<int64_t>(storage.nbytes()) == nbytes) {
    return storage;
  }
  char* data = static_cast<char*>(storage.mutable_data());
  return c10::Storage(
      c10::Storage::use_byte_size_t(), static_cast<size_t>(nbytes),
      c10::DataPtr(data ? data + offset_in_bytes(tensor) : nullptr, storage.device()), nullptr,
      false);
}

Layout layout_in_part(const at::Tensor& tensor) {
  Layout layout = Layout::of(tensor);
  layout.offset = 0;
  return layout;
}

/// The whole storages behind arguments, on the real device: computed, and where they are written
/// free of pending readers. `written`: by argument. The caller holds the execution lock.
std::vector<c10::Storage> real_storages(c10::ArrayRef<at::Tensor> arguments,
                                        const std::vector<bool>& written) {
  std::vector<Buffer*> to_read;
  std::vector<Buffer*> to_write;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (is_lazy(arguments[i])) {
      (written[i] ? to_write : to_read).push_back(&buffer_of(arguments[i]));
    }
  }
  if (!to_read.empty()) {
    run_buffers(to_read);
  }
  if (!to_write.empty()) {
    run_buffers(to_write, /*to_write=*/true);
  }
  std::vector<c10::Storage> storages;
  storages.reserve(arguments.size());
  for (const at::Tensor& argument : arguments) {
    storages.push_back(is_lazy(argument) ? materialize(buffer_of(argument)) : argument.storage());
  }
  return storages;
}

/// Writes what lies in `data` as the argument does in its part into that part, and nothing between.
void write_part(const c10::Storage& data, const c10::Storage& part, const at::Tensor& argument) {
  if (data.data() != part.data()) {
    const Layout layout = layout_in_part(argument);
    BelowEverything below;
    real_tensor(part, layout).copy_(real_tensor(to_real_memory(data), layout));
  }
}

/// A tensor over the memory of an argument, given how it lies in the argument's part.
at::Tensor view_of(const at::Tensor& argument, Layout layout) {
  const int64_t bytes = offset_in_bytes(argument);
  const auto size = static_cast<int64_t>(c10::elementSize(layout.dtype));
  TORCH_CHECK(bytes % size == 0, "torch-lazy: a view of another dtype begins inside an element");
  layout.offset += bytes / size;
  return is_lazy(argument) ? make_tensor(argument.storage(), layout)
                           : real_tensor(argument.storage(), layout);
}

/// Memory that the call made, as the caller gets it. Results may share it.
class NewMemory {
 public:
  at::Tensor tensor(uint32_t buffer, const Layout& layout, c10::DeviceIndex device, bool to_lazy,
                    const std::function<c10::Storage()>& data) {
    auto found = made_.find(buffer);
    if (found == made_.end()) {
      c10::Storage real = to_real_memory(data());
      c10::Storage storage = real;
      if (to_lazy) {
        storage = make_storage(static_cast<int64_t>(real.nbytes()), device);
        set_buffer_data(buffer_of(storage), std::move(real));
      }
      found = made_.emplace(buffer, std::move(storage)).first;
    }
    return to_lazy ? make_tensor(found->second, layout) : real_tensor(found->second, layout);
  }

 private:
  std::unordered_map<uint32_t, c10::Storage> made_;
};

}  // namespace

bool has_plain_memory(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && !tensor.is_quantized() && !tensor.is_nested() &&
         tensor.has_storage() &&
         (is_lazy(tensor) || tensor.device().type() == real_device().type());
}

bool owns_memory(const at::Tensor& tensor) {
  const c10::Storage& storage = tensor.storage();
  if (storage.use_count() > 1 || tensor.storage_offset() != 0 ||
      static_cast<int64_t>(storage.nbytes()) != bytes_of(tensor)) {
    return false;
  }
  // Memory of others (NumPy's, a file's) has other deleters.
  return is_lazy(tensor) || (tensor.device().is_cpu() && storage.data_ptr().get_deleter() ==
                                                             c10::GetCPUAllocator()->raw_deleter());
}

// ---- Recording ----------------------------------------------------------------------------------

PlainRecorder::PlainRecorder(std::vector<at::Tensor> arguments, std::vector<uint32_t> given_up)
    : arguments_(std::move(arguments)) {
  {
    ExecutionLock execution;
    memory_ = real_storages(arguments_, std::vector<bool>(arguments_.size(), true));
  }
  for (size_t i = 0; i < arguments_.size(); ++i) {
    memory_[i] = part_of(memory_[i], arguments_[i]);
    at::Tensor lazy = make_undefined(layout_in_part(arguments_[i]), bytes_of(arguments_[i]), 0);
    set_buffer_data(buffer_of(lazy), memory_[i]);
    lazy_.push_back(std::move(lazy));
  }
  recorder_ = std::make_unique<Recorder>(lazy_, std::vector<at::Tensor>(), std::move(given_up));
}

Recording PlainRecorder::finish(std::vector<at::Tensor>& results,
                                const std::vector<bool>& to_lazy) {
  std::optional<OnThisThread> here;
  if (std::find(to_lazy.begin(), to_lazy.end(), false) != to_lazy.end()) {
    here.emplace();
  }
  Recording recording = recorder_->finish(results, std::vector<ResultGraph>(results.size()));
  recorder_.reset();
  write_back(recording);
  for (size_t i = 0; i < results.size(); ++i) {
    results[i] = for_caller(results[i], to_lazy[i]);
  }
  return recording;
}

/// What the graph wrote into its arguments is in the caller's memory afterwards.
void PlainRecorder::write_back(const Recording& recording) {
  ExecutionLock execution;
  for (size_t i = 0; i < lazy_.size(); ++i) {
    Buffer& buffer = buffer_of(lazy_[i]);
    const bool used_up = i < recording.known.size() &&
                         recording.known[i].buffer < recording.after.size() &&
                         recording.after[recording.known[i].buffer].kind == Content::Kind::donated;
    if (buffer.generation == 1 || used_up) {
      continue;
    }
    write_part(materialize(buffer), memory_[i], arguments_[i]);
    bump_version(arguments_[i]);
  }
}

at::Tensor PlainRecorder::for_caller(const at::Tensor& result, bool to_lazy) const {
  for (size_t i = 0; i < lazy_.size(); ++i) {
    if (lazy_[i].is_same(result)) {
      return arguments_[i];
    }
    if (lazy_[i].is_alias_of(result)) {
      return view_of(arguments_[i], Layout::of(result));
    }
  }
  if (to_lazy) {
    return result;
  }
  ExecutionLock execution;
  return real_of(result, /*to_write=*/true);
}

// ---- Running ------------------------------------------------------------------------------------

bool matches_plain(const Recording& recording, c10::ArrayRef<at::Tensor> arguments) {
  if (arguments.size() != recording.known.size()) {
    return false;
  }
  for (size_t i = 0; i < arguments.size(); ++i) {
    const at::Tensor& tensor = arguments[i];
    const Layout& layout = recording.known[i].layout;
    if (tensor.scalar_type() != layout.dtype || tensor.sizes() != at::IntArrayRef(layout.sizes) ||
        tensor.strides() != at::IntArrayRef(layout.strides) || tensor.is_conj() != layout.conj ||
        tensor.is_neg() != layout.neg) {
      return false;
    }
  }
  return true;
}

namespace {

class PlainReplay {
 public:
  PlainReplay(const Recording& recording, std::vector<at::Tensor> arguments)
      : r_(recording), arguments_(std::move(arguments)), fresh_(recording, {}) {
    std::vector<bool> written(arguments_.size());
    for (size_t i = 0; i < arguments_.size(); ++i) {
      written[i] = is_written(i);
    }
    whole_ = real_storages(arguments_, written);
    for (size_t i = 0; i < arguments_.size(); ++i) {
      parts_.push_back(part_of(whole_[i], arguments_[i]));
      // What lies between its elements may be another argument's.
      const bool apart = written[i] && !arguments_[i].is_non_overlapping_and_dense();
      memory_.push_back(apart ? copy_of(parts_[i]) : parts_[i]);
      if (is_given_up(i)) {
        use_up(i);
      }
    }
  }

  std::vector<at::Tensor> operator()(const std::vector<bool>& to_lazy) {
    if (r_.plan) {
      run();
    }
    write_back();
    std::vector<at::Tensor> results;
    results.reserve(r_.results.size());
    for (size_t i = 0; i < r_.results.size(); ++i) {
      results.push_back(result(r_.results[i], to_lazy[i]));
    }
    return results;
  }

 private:
  Content::Kind after(size_t argument) const { return r_.after[r_.known[argument].buffer].kind; }
  bool is_given_up(size_t argument) const { return after(argument) == Content::Kind::donated; }
  bool is_written(size_t argument) const {
    return after(argument) != Content::Kind::entry && !is_given_up(argument);
  }

  /// Nothing but `memory_` holds it from now on. Data that something else reads is copied.
  void use_up(size_t argument) {
    if (!memory_[argument].is_alias_of(whole_[argument])) {
      memory_[argument] = copy_of(memory_[argument]);
    }
    whole_[argument] = parts_[argument] = c10::Storage();
    arguments_[argument].reset();
    if (memory_[argument].use_count() > 1) {
      memory_[argument] = copy_of(memory_[argument]);
    }
    run_.only_attempt = true;
  }

  void run() {
    const Graph& graph = *r_.plan->graph;
    run_.numbers = r_.numbers;
    run_.slots.resize(graph.slots);
    for (size_t i = 0; i < graph.parameters.size(); ++i) {
      run_.slots[graph.parameters[i].slot] = data_of(r_.parameters[i]);
    }
    for (size_t i = 0; i < arguments_.size(); ++i) {
      if (is_given_up(i)) {
        memory_[i] = c10::Storage();
      }
    }
    try {
      execute(*r_.plan->executable, run_);
    } catch (...) {
      raise(*failure_of(r_, run_, std::current_exception()));
    }
  }

  c10::Storage data_of(const Content& content) const {
    switch (content.kind) {
      case Content::Kind::entry:
        return memory_[content.index];
      case Content::Kind::slot:
        return run_.slots[content.index];
      default:
        return fresh_.of(content);
    }
  }

  void write_back() {
    for (size_t i = 0; i < arguments_.size(); ++i) {
      if (!is_written(i)) {
        continue;
      }
      if (const c10::Storage data = data_of(r_.after[r_.known[i].buffer])) {
        write_part(data, parts_[i], arguments_[i]);
      }
      bump_version(arguments_[i]);
    }
  }

  at::Tensor result(const MadeTensor& made, bool to_lazy) {
    if (made.known >= 0) {
      return arguments_[made.known];
    }
    if (made.buffer.known) {
      return view_of(arguments_[made.buffer.index], made.layout);
    }
    const MadeBuffer& buffer = r_.made[made.buffer.index];
    return new_.tensor(made.buffer.index, made.layout, 0, to_lazy, [&] {
      c10::Storage data = data_of(buffer.content);
      return data ? data : allocate(buffer.nbytes);
    });
  }

  const Recording& r_;
  std::vector<at::Tensor> arguments_;
  std::vector<c10::Storage> whole_;   // of the arguments
  std::vector<c10::Storage> parts_;   // what the arguments lie in
  std::vector<c10::Storage> memory_;  // what the plan gets
  Run run_;
  FreshData fresh_;
  NewMemory new_;
};

}  // namespace

std::vector<at::Tensor> replay_plain(const Recording& recording, std::vector<at::Tensor> arguments,
                                     const std::vector<bool>& to_lazy) {
  static metrics::Counter& replayed = metrics::counter("Replayed");
  replayed.add();
  ExecutionLock execution;
  return PlainReplay(recording, std::move(arguments))(to_lazy);
}

}  // namespace torch_lazy
