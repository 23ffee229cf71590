// A recorded call: what a function did to the tensors it knew and made, in terms that hold for
// other tensors of the same kind. Replaying it does the same without the function.
#pragma once

#include "runtime/plan_cache.h"
#include "runtime/watch.h"
#include <torch_lazy/export.h>
#include <torch_lazy/layout.h>

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace torch::autograd {
struct AutogradMeta;
}

namespace torch_lazy {

class HistoryWatch;

/// A tensor that the function may know before it is called: an argument, a parameter, a gradient.
struct KnownTensor {
  Layout layout;
  c10::DeviceIndex device = 0;
  bool requires_grad = false;
  bool leaf = true;
  bool hooks = false;   // code that autograd would run for its gradient
  uint32_t buffer = 0;  // which of the known buffers
  int grad = -1;        // its gradient among the known tensors; -1: none

  bool operator==(const KnownTensor&) const = default;
};

/// A plain tensor among the arguments: its data comes to the device in every call.
struct HostTensor {
  Layout layout;
  at::Device device = at::kCPU;
  bool requires_grad = false;
  bool has_grad = false;
  uint32_t same = 0;     // the first of the host tensors that is this very one
  uint32_t storage = 0;  // the first of them with the same storage
  int64_t nbytes = 0;    // of its storage, as far as the call reads it

  static HostTensor of(const at::Tensor& tensor) {
    HostTensor host;
    host.layout = Layout::of(tensor);
    host.device = tensor.device();
    host.requires_grad = tensor.requires_grad();
    host.has_grad = tensor.is_leaf() && tensor.grad().defined();
    return host;
  }

  bool operator==(const HostTensor&) const = default;
};

/// Where data comes from.
struct Content {
  enum class Kind : uint8_t {
    entry,      // what known buffer `index` had before the call
    slot,       // slot `index` of the graph
    draw,       // random numbers
    upload,     // data from the host
    undefined,  // memory without content
    donated,    // given up by the caller
  };
  Kind kind = Kind::entry;
  uint32_t index = 0;

  bool operator==(const Content&) const = default;
};

/// Data from a plain tensor: of an argument, or the same in every call.
struct HostData {
  int argument = -1;  // which of the host tensors; -1: `constant`
  Layout source;      // how it lies in the argument's storage
  c10::Storage constant;
  Layout layout;  // how it lies in its new memory
  int64_t nbytes = 0;
};

/// A buffer that is known, or one that the call makes.
struct BufferPlace {
  bool known = true;
  uint32_t index = 0;

  bool operator==(const BufferPlace&) const = default;
};

/// A buffer that did not exist before the call and is there after it.
struct MadeBuffer {
  Content content;
  int64_t nbytes = 0;
  c10::DeviceIndex device = 0;

  bool operator==(const MadeBuffer&) const = default;
};

/// A tensor that is there after the call: a result, or a gradient.
struct MadeTensor {
  int known = -1;        // the known tensor itself; -1: a new one
  int gradient_of = -1;  // the new gradient of this known tensor itself
  int same = -1;         // a result: the one before it that is this very tensor
  int related = -1;      // a result: one of the known tensors, or of the results after them, with
                         // which it shares the count of writes
  bool view = false;     // and of which, or of whose base, it is a view for autograd
  bool view_with_grad = false;  // made with the mode of gradients on
  BufferPlace buffer;
  Layout layout;
  bool requires_grad = false;
  bool consumed = false;   // backward has gone through the graph that made it
  bool inference = false;  // made in inference mode

  bool operator==(const MadeTensor&) const = default;
};

struct NewGradient {
  uint32_t of = 0;  // known tensor
  bool none = false;
  MadeTensor tensor;

  bool operator==(const NewGradient&) const = default;
};

/// Gradients in one known buffer whose places new ones take.
struct ReplacedGradients {
  uint32_t buffer = 0;
  std::vector<uint32_t> gradients;  // of the recording's
  std::vector<uint32_t> old;        // known tensors: the gradients before
  int made = -1;  // the made buffer that holds the new ones, and them only, just as they lay before
};

/// A version of a known buffer inside the graph.
struct Version {
  uint32_t node = 0;
  uint32_t slot = 0;
};

using TensorPair = std::pair<uint32_t, uint32_t>;

struct Recording {
  // What it was recorded for.
  std::vector<KnownTensor> known;  // given ones, then the gradients of those that had one
  uint32_t given = 0;
  std::vector<HostTensor> hosts;
  std::vector<TensorPair> same;      // known tensors that are one
  std::vector<TensorPair> distinct;  // known tensors that only lie in the same way
  std::vector<char> undefined;       // by known buffer: it had no content
  std::vector<int64_t> nbytes;       // by known buffer

  // What it runs.
  std::shared_ptr<Plan> plan;  // null: nothing
  std::vector<uint64_t> signature;
  std::vector<Content> parameters;  // by parameter of the graph
  std::vector<c10::IValue> numbers;
  std::vector<std::string> lines;  // by node: the user's line
  std::vector<Draw> draws;
  std::vector<HostData> uploads;
  std::vector<std::vector<Version>> versions;  // by known buffer, in order

  // What it leaves.
  std::vector<Content> after;     // by known buffer
  std::vector<uint32_t> written;  // known tensors whose buffers have something else afterwards
  std::vector<MadeBuffer> made;
  std::vector<NewGradient> gradients;
  std::vector<ReplacedGradients> replaced;
  std::vector<MadeTensor> results;
  bool keeps_old_gradients = false;  // one that it had before is a result or another gradient

  bool backward = false;  // autograd went backward
  std::string obstacle;   // why it cannot be replayed; empty: it can
  bool untimely = false;  // the function could not be recorded now; that says nothing about it

  /// The operator that a number is given to, and its line.
  TORCH_LAZY_API std::string number_place(size_t number) const;
};

/// In what two recordings differ; empty: in nothing but, perhaps, numbers.
TORCH_LAZY_API std::string difference(const Recording& a, const Recording& b);

/// The numbers in which two recordings differ.
TORCH_LAZY_API std::vector<uint32_t> different_numbers(const Recording& a, const Recording& b);

/// Whether a number of a recording is a floating-point one.
TORCH_LAZY_API bool is_double(const c10::IValue& number);

/// Another number of the same kind: plain, or a tensor that stands for one.
TORCH_LAZY_API c10::IValue number_like(const c10::IValue& recorded, double number);

/// The autograd graph behind a result.
enum class ResultGraph : int {
  none,
  used_up,  // backward has gone through it and freed what it needed
  needed,
};

/// Records what the calling thread does between construction and `finish`.
class TORCH_LAZY_API Recorder {
 public:
  /// `known`: distinct lazy tensors; `hosts`: plain ones; `donated`: those of `known` whose content
  /// the caller gives up.
  Recorder(std::vector<at::Tensor> known, std::vector<at::Tensor> hosts,
           std::vector<uint32_t> donated = {});
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  /// Whether a tensor that the call made is held by something else than its results and gradients:
  /// an object, or a graph of autograd in a cycle that nobody has collected yet.
  bool leaves_others(const std::vector<at::Tensor>& results) const;

  /// Runs what was recorded. `graphs`: one for each result.
  Recording finish(const std::vector<at::Tensor>& results, const std::vector<ResultGraph>& graphs);

  /// The same without running it: the results are never computed.
  Recording plan(const std::vector<at::Tensor>& results);

  /// Ends the recording without a result: the function has failed.
  void abandon();

 private:
  /// Takes the content of donated tensors away, which the graph may then overwrite or free early;
  /// not of those that are written, returned, or share memory with a tensor that is not donated.
  std::vector<uint32_t> give_up_donated(const std::vector<at::Tensor>& results);
  Recording finish(const std::vector<at::Tensor>& results, const std::vector<ResultGraph>& graphs,
                   bool run);
  void find_pairs();

  std::vector<at::Tensor> known_;
  std::vector<at::Tensor> hosts_;
  std::vector<uint32_t> donated_;
  std::vector<Buffer*> buffers_;  // known ones
  std::vector<Value*> entry_;     // by known buffer: held
  uint64_t last_buffer_ = 0;      // newer ones were made by the call
  Recording recording_;
  std::unique_ptr<Watch> watch_;
  std::unique_ptr<HistoryWatch> histories_;
};

/// Whether autograd runs code of the program's for a tensor's gradient.
bool has_hooks(const torch::autograd::AutogradMeta& autograd);

/// Whether the node that accumulates its gradient has some.
TORCH_LAZY_API bool accumulator_has_hooks(const torch::autograd::AutogradMeta& autograd);

/// Whether forward-mode differentiation carries a tangent with a tensor.
bool has_tangent(const torch::autograd::AutogradMeta& autograd);

/// A buffer whose content the caller has given up: who reads it gets an error.
void lose_donated(Buffer& buffer, GraphLock& lock);

/// Finishes what was recorded and scheduled before a replay. False: this is no place for one,
/// inside a recording or a run.
TORCH_LAZY_API bool ready_to_replay();

/// Whether this thread is recording.
TORCH_LAZY_API bool is_recording();

/// A tensor as it was when it matched: where it has not changed it need not be looked at closely.
struct BoundTensor {
  static constexpr size_t kBytes = sizeof(c10::TensorImpl) - sizeof(c10::intrusive_ptr_target);

  const c10::TensorImpl* impl = nullptr;  // null: it is looked at anew in every call
  const c10::StorageImpl* storage = nullptr;
  const torch::autograd::AutogradMeta* autograd = nullptr;  // null: it took no part in autograd
  Buffer* buffer = nullptr;
  const Value* value = nullptr;                     // only fetched, never looked at
  uint32_t place = 0;                               // among the known buffers
  alignas(16) std::array<char, kBytes> bytes = {};  // of `impl`, after its reference count
};

/// The tensors of a call that is replayed. Kept from one call to the next it makes that quicker.
struct ReplayTensors {
  std::vector<const at::Tensor*> known;  // the given ones; `matches` adds their gradients
  std::vector<const at::Tensor*> hosts;
  std::vector<Buffer*> buffers;                // known ones; `matches` finds them
  std::vector<BoundTensor> bound;              // by known tensor, of the last call
  std::vector<c10::VariableVersion> versions;  // by known tensor: its count of writes
  Run run;                                     // empty, but for its size and the recorded numbers

  /// Forgets the call, but not what it has found out.
  void clear() {
    known.clear();
    hosts.clear();
  }
};

/// Whether two tensors, of any kind, are in one storage.
bool share_storage(const at::Tensor& a, const at::Tensor& b);

/// Whether the tensors are of the kind that was recorded.
TORCH_LAZY_API bool matches(const Recording& recording, ReplayTensors& tensors);

/// Does what was recorded to other tensors, which match, and returns the results. `numbers`: those
/// of this call; empty: the recorded ones. Raises eager's kind of error; what ran before stays, and
/// `completed` says how many nodes did.
TORCH_LAZY_API std::vector<at::Tensor> replay(const Recording& recording, ReplayTensors& tensors,
                                              std::vector<c10::IValue> numbers = {},
                                              size_t* completed = nullptr);

}  // namespace torch_lazy
