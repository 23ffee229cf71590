// Loading a saved graph: its calls are recorded again. This is the way that every call goes, and
// what a file says is checked by the operators themselves.
#include "base/hash.h"
#include "capture/capture.h"
#include "capture/tensor.h"
#include "replay/archive.h"
#include "replay/loadable.h"
#include "replay/recording.h"
#include "replay/saved_form.h"
#include "runtime/executor.h"
#include "runtime/real_tensor.h"
#include <torch_lazy/saved_graph.h>
#include <torch_lazy/version.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/zeros.h>
#include <torch/version.h>

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>

namespace torch_lazy {
namespace {

constexpr int kPasses = 3;  // a call that is executed at once is recorded in the next pass

int64_t memory_of_machine() {
  return static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
}

/// What a file has: read once, recorded in a few passes.
struct LoadedKnown {
  std::string name;
  Layout layout;
  uint32_t buffer = 0;
};

struct LoadedBuffer {
  int64_t nbytes = 0;
  bool has_data = false;
  std::string_view data;
};

class GraphReader {
 public:
  GraphReader(std::string_view contents, const std::string& path,
              const std::vector<std::string>& namespaces)
      : in_(contents, path), namespaces_(namespaces) {
    in_.text();  // the version of torch-lazy, for people who look into the file
    torch_ = in_.text();
    read_known();
    calls_ = in_;
  }

  size_t arguments() const { return arguments_; }
  const std::vector<LoadedKnown>& known() const { return known_; }

  /// The known tensors, with the file's data or, for trials, zeros; `arguments`: these too.
  std::vector<at::Tensor> make_known(bool with_data, bool arguments) const {
    std::vector<c10::Storage> storages;
    for (const LoadedBuffer& buffer : buffers_) {
      c10::Storage storage = make_storage(buffer.nbytes, 0);
      const auto index = static_cast<uint32_t>(storages.size());
      if (buffer.has_data || (arguments && is_argument(index))) {
        at::Tensor bytes = at::zeros({buffer.nbytes}, at::kByte);
        if (with_data && buffer.has_data) {
          std::memcpy(bytes.mutable_data_ptr(), buffer.data.data(), buffer.data.size());
        }
        upload_to_buffer(buffer_of(storage), bytes, bytes_layout(buffer.nbytes));
      }
      storages.push_back(std::move(storage));
    }
    std::vector<at::Tensor> tensors;
    for (const LoadedKnown& known : known_) {
      tensors.push_back(make_tensor(storages[known.buffer], known.layout));
    }
    return tensors;
  }

  /// Makes the calls on lazy tensors; the results.
  std::vector<at::Tensor> record(const std::vector<at::Tensor>& known) {
    in_ = calls_;
    executed_ = false;
    read_draws();
    read_constants();
    read_parameters(known);
    for (size_t left = in_.count(); left > 0; --left) {
      read_node();
    }
    std::vector<at::Tensor> results = read_results(known);
    slots_.clear();  // what nobody needs any more is no result
    drawn_.clear();
    constants_.clear();
    return results;
  }

  /// Whether a call of the last pass was executed at once.
  bool executed() const { return executed_; }

  [[noreturn]] void damaged(const std::string& what) const { in_.damaged(what); }

 private:
  bool is_argument(uint32_t buffer) const {
    return std::any_of(known_.begin(), known_.begin() + static_cast<ptrdiff_t>(arguments_),
                       [&](const LoadedKnown& known) { return known.buffer == buffer; });
  }

  void read_known() {
    arguments_ = in_.number();
    const size_t tensors = in_.count();
    const size_t buffers = in_.count();
    if (arguments_ > tensors) {
      in_.damaged("it has more arguments than tensors");
    }
    for (size_t i = 0; i < tensors; ++i) {
      LoadedKnown known;
      known.name = printable(in_.text());
      known.layout = in_.layout();
      known.buffer = in_.index(buffers);
      known_.push_back(std::move(known));
    }
    for (size_t b = 0; b < buffers; ++b) {
      LoadedBuffer buffer;
      buffer.nbytes = nbytes();
      buffer.has_data = in_.number() != 0;
      if (buffer.has_data) {
        buffer.data = in_.bytes(static_cast<size_t>(buffer.nbytes));
      }
      buffers_.push_back(buffer);
    }
    for (const LoadedKnown& known : known_) {
      check_fits(known.layout, buffers_[known.buffer].nbytes);
    }
    int64_t total = 0;
    for (const LoadedBuffer& buffer : buffers_) {
      total += buffer.nbytes;
    }
    if (total > memory_of_machine()) {
      in_.damaged("its tensors take " + std::to_string(total) + " bytes, more than there are");
    }
  }

  int64_t nbytes() {
    const uint64_t value = in_.number();
    if (value > uint64_t{1} << 46) {
      in_.damaged("it has a tensor of an impossible size");
    }
    return static_cast<int64_t>(value);
  }

  /// Whether a tensor that lies so stays inside its memory; sums are checked for overflow.
  void check_fits(const Layout& layout, int64_t nbytes) const {
    __int128 last = layout.offset;
    for (size_t i = 0; i < layout.sizes.size(); ++i) {
      if (layout.sizes[i] == 0) {
        return;
      }
      last += static_cast<__int128>(layout.sizes[i] - 1) * layout.strides[i];
    }
    if ((last + 1) * static_cast<__int128>(c10::elementSize(layout.dtype)) > nbytes) {
      in_.damaged("it has a tensor that lies outside of its memory");
    }
  }

  const OperatorInfo& read_op() {
    const std::string name = in_.text();
    const std::string overload = in_.text();
    const uint64_t identity = in_.number();
    auto found = c10::Dispatcher::singleton().findSchema({name, overload});
    const std::string full = overload.empty() ? name : name + "." + overload;
    if (!found) {
      in_.damaged("it calls " + full + ", which is not known here (it was saved with PyTorch " +
                  torch_ + ")");
    }
    const OperatorInfo& info = operator_info(*found);
    if (info.identity != identity) {
      in_.damaged("it calls " + full + " as PyTorch " + torch_ +
                  " defines it, and this is PyTorch " + TORCH_VERSION);
    }
    if (const std::string reason = why_not_loadable(info, namespaces_); !reason.empty()) {
      in_.damaged("it calls " + full + ", which " + reason);
    }
    return info;
  }

  void read_draws() {
    drawn_.clear();
    for (size_t left = in_.count(); left > 0; --left) {
      const OperatorInfo& op = read_op();
      const Layout layout = in_.layout();
      const int64_t size = nbytes();
      check_fits(layout, size);
      const size_t count = in_.count();
      if (!op.random_fill || count != op.arguments.size()) {
        in_.damaged("it draws random numbers with " + op.name);
      }
      at::Tensor target = make_undefined(layout, size, 0);
      Stack stack{target};
      for (size_t i = 1; i < count; ++i) {
        stack.push_back(in_.value());
      }
      call(op, stack);
      drawn_.push_back(target.storage());
    }
  }

  void read_constants() {
    constants_.clear();
    for (size_t left = in_.count(); left > 0; --left) {
      const Layout layout = in_.layout();
      const int64_t size = nbytes();
      check_fits(layout, size);
      const std::string_view data = in_.bytes(static_cast<size_t>(size));
      at::Tensor bytes = at::zeros({size}, at::kByte);
      std::memcpy(bytes.mutable_data_ptr(), data.data(), data.size());
      c10::Storage storage = make_storage(size, 0);
      upload_to_buffer(buffer_of(storage), bytes, bytes_layout(size));
      constants_.push_back(std::move(storage));
    }
  }

  c10::Storage known_storage(const std::vector<at::Tensor>& known, uint64_t buffer) const {
    for (size_t i = 0; i < known_.size(); ++i) {
      if (known_[i].buffer == buffer) {
        return known[i].storage();
      }
    }
    in_.damaged("it refers to something that it does not have");
  }

  c10::Storage read_content(const std::vector<at::Tensor>& known, int64_t size) {
    const uint64_t kind = in_.number();
    const uint64_t index = in_.number();
    auto from = [&](const std::vector<c10::Storage>& storages) {
      if (index >= storages.size() || !storages[index]) {
        in_.damaged("it refers to something that it does not have");
      }
      return storages[index];
    };
    switch (static_cast<Content::Kind>(kind)) {
      case Content::Kind::entry:
        return known_storage(known, index);
      case Content::Kind::slot:
        return from(slots_);
      case Content::Kind::draw:
        return from(drawn_);
      case Content::Kind::upload:
        return from(constants_);
      case Content::Kind::undefined:  // of a known tensor that is overwritten, or of its own
        return index > 0 ? known_storage(known, index - 1) : make_storage(size, 0);
      default:
        in_.damaged("it refers to something that it does not have");
    }
  }

  void read_parameters(const std::vector<at::Tensor>& known) {
    slots_.assign(in_.count(), c10::Storage());
    for (size_t left = in_.count(); left > 0; --left) {
      const uint32_t slot = in_.index(slots_.size());
      const int64_t size = nbytes();
      fill(slot, read_content(known, size));
    }
  }

  at::Tensor tensor(uint32_t slot, const Layout& layout) const {
    if (!slots_[slot]) {
      in_.damaged("a call reads what was not computed before");
    }
    check_fits(layout, static_cast<int64_t>(slots_[slot].nbytes()));
    return make_tensor(slots_[slot], layout);
  }

  void read_node() {
    const OperatorInfo& op = read_op();
    if (op.immediate != Immediate::no && !op.dynamic_only_with_masks) {
      in_.damaged(op.name + " is not recorded in graphs");
    }
    const std::string line = in_.text();
    const DefaultDtypeGuard dtype(in_.floating_dtype());
    std::vector<at::Tensor> operands;
    std::vector<uint32_t> operand_slots;
    for (size_t left = in_.count(); left > 0; --left) {
      operand_slots.push_back(in_.index(slots_.size()));
      operands.push_back(tensor(operand_slots.back(), in_.layout()));
    }
    std::vector<c10::IValue> numbers;
    for (size_t left = in_.count(); left > 0; --left) {
      numbers.push_back(in_.value());
    }
    Stack stack = read_arguments(op, operands, numbers);
    std::vector<int64_t> outputs;
    for (size_t left = in_.count(); left > 0; --left) {
      outputs.push_back(static_cast<int64_t>(in_.number()));
      if (outputs.back() < -1 || outputs.back() >= static_cast<int64_t>(slots_.size())) {
        in_.damaged("it refers to something that it does not have");
      }
    }
    size_t before = 0;
    {
      GraphLock lock;
      before = Program::instance().pending();
    }
    call(op, stack);
    place_outputs(op, stack, operand_slots, outputs, before);
  }

  Stack read_arguments(const OperatorInfo& op, const std::vector<at::Tensor>& operands,
                       const std::vector<c10::IValue>& numbers) {
    Stack stack;
    const size_t count = in_.count();
    if (count != op.arguments.size()) {
      in_.damaged("it calls " + op.name + " with another number of arguments");
    }
    auto element = [&](int64_t which) -> at::Tensor {
      if (which == -1) {
        return {};
      }
      const auto place = static_cast<uint64_t>(which >= 0 ? which : -2 - which);
      if (place >= (which >= 0 ? operands.size() : numbers.size()) ||
          (which < 0 && !numbers[place].isTensor())) {
        in_.damaged("it refers to something that it does not have");
      }
      return which >= 0 ? operands[place] : numbers[place].toTensor();
    };
    for (size_t i = 0; i < count; ++i) {
      const auto kind = static_cast<ArgumentSource::Kind>(in_.index(5));
      if (kind == ArgumentSource::Kind::constant) {
        stack.push_back(in_.value());
        continue;
      }
      const uint64_t index = in_.number();
      std::vector<int64_t> elements(in_.count());
      for (int64_t& which : elements) {
        which = static_cast<int64_t>(in_.number());
      }
      switch (kind) {
        case ArgumentSource::Kind::operand:
          stack.emplace_back(element(static_cast<int64_t>(index)));
          break;
        case ArgumentSource::Kind::operand_list: {
          c10::List<at::Tensor> list;
          for (int64_t which : elements) {
            list.push_back(element(which));
          }
          stack.emplace_back(std::move(list));
          break;
        }
        case ArgumentSource::Kind::optional_list: {
          c10::List<std::optional<at::Tensor>> list;
          for (int64_t which : elements) {
            list.push_back(which == -1 ? std::nullopt : std::optional<at::Tensor>(element(which)));
          }
          stack.emplace_back(std::move(list));
          break;
        }
        default:
          if (index >= numbers.size()) {
            in_.damaged("it refers to something that it does not have");
          }
          stack.push_back(numbers[index]);
      }
    }
    return stack;
  }

  void call(const OperatorInfo& op, Stack& stack) const {
    try {
      capture(op.handle, &stack);
    } catch (const c10::Error& error) {
      in_.damaged("its call of " + op.name + " is refused: " + error.what_without_backtrace());
    }
  }

  /// The memory of what the call has made: of new results, and of what it wrote.
  void place_outputs(const OperatorInfo& op, const Stack& stack,
                     const std::vector<uint32_t>& operands, const std::vector<int64_t>& outputs,
                     size_t pending_before) {
    std::vector<at::Tensor> results;
    for (const c10::IValue& value : stack) {
      if (value.isTensor() && value.toTensor().defined()) {
        results.push_back(value.toTensor());
      } else if (value.isTensorList()) {
        for (const at::Tensor& each : value.toTensorVector()) {
          results.push_back(each);
        }
      }
    }
    // Under the lock it is only found out what lies where: freeing a storage takes the lock, too,
    // and a file that is damaged is refused without it.
    constexpr int64_t kOperands = -1;  // what is below is the operand that was written
    std::vector<int64_t> from(outputs.size(), static_cast<int64_t>(results.size()));
    bool recorded = false;
    bool as_many = false;
    {
      GraphLock lock;
      Program& program = Program::instance();
      recorded = program.pending() == pending_before + 1;
      if (recorded) {
        const Node& node = *program.last();
        const size_t fresh = node.description->fresh.size();
        as_many = node.outputs.size() == outputs.size();
        for (size_t k = 0; as_many && k < outputs.size(); ++k) {
          if (k >= fresh) {
            from[k] = kOperands - node.description->writes[k - fresh].operand;
            continue;
          }
          for (size_t i = 0; i < results.size(); ++i) {
            if (is_lazy(results[i]) && buffer_of(results[i]).current == node.outputs[k]) {
              from[k] = static_cast<int64_t>(i);
            }
          }
        }
      }
    }
    if (!recorded) {
      executed_ = true;  // at once, to see how its results lie
      skip_outputs(results, outputs);
      return;
    }
    if (!as_many) {
      in_.damaged(op.name + " has another number of results");
    }
    for (size_t k = 0; k < outputs.size(); ++k) {
      if (outputs[k] < 0) {
        continue;
      }
      if (from[k] <= kOperands) {
        const auto operand = static_cast<size_t>(kOperands - from[k]);
        if (operand >= operands.size()) {
          in_.damaged("it refers to something that it does not have");
        }
        fill(outputs[k], slots_[operands[operand]]);
      } else if (from[k] < static_cast<int64_t>(results.size())) {
        fill(outputs[k], results[static_cast<size_t>(from[k])].storage());
      }
    }
  }

  /// A call that was executed at once: its results in their order.
  void skip_outputs(const std::vector<at::Tensor>& results, const std::vector<int64_t>& outputs) {
    for (size_t k = 0; k < std::min(outputs.size(), results.size()); ++k) {
      if (outputs[k] >= 0 && is_lazy(results[k])) {
        fill(outputs[k], results[k].storage());
      }
    }
  }

  /// Each slot is filled once; what a call writes in place may keep its slot.
  void fill(int64_t which, c10::Storage storage) {
    c10::Storage& slot = slots_[static_cast<size_t>(which)];
    if (slot && slot.unsafeGetStorageImpl() != storage.unsafeGetStorageImpl()) {
      in_.damaged("it computes the same value twice");
    }
    slot = std::move(storage);
  }

  std::vector<at::Tensor> read_results(const std::vector<at::Tensor>& known) {
    std::vector<at::Tensor> results;
    for (size_t left = in_.count(); left > 0; --left) {
      const Layout layout = in_.layout();
      const bool is_known = in_.number() != 0;
      const uint64_t index = in_.number();
      c10::Storage storage;
      if (is_known) {
        storage = known_storage(known, index);
      } else {
        ArchiveReader ahead = in_;
        ahead.number();
        ahead.number();
        storage = read_content(known, static_cast<int64_t>(ahead.number()));
        in_.number();
      }
      check_fits(layout, static_cast<int64_t>(storage.nbytes()));
      results.push_back(make_tensor(std::move(storage), layout));
    }
    if (!in_.at_end()) {
      in_.damaged("it has more than a graph");
    }
    return results;
  }

  ArchiveReader in_;
  const std::vector<std::string>& namespaces_;
  ArchiveReader calls_{"", ""};
  std::string torch_;
  size_t arguments_ = 0;
  std::vector<LoadedKnown> known_;
  std::vector<LoadedBuffer> buffers_;
  std::vector<c10::Storage> slots_;
  std::vector<c10::Storage> drawn_;
  std::vector<c10::Storage> constants_;
  bool executed_ = false;
};

std::string read_file(const std::string& path) {
  std::ifstream file;
  if (path.find('\0') == std::string::npos) {
    file.open(path, std::ios::binary);
  }
  TORCH_CHECK(file.is_open(), "torch-lazy: cannot read ", printable(path));
  std::ostringstream contents;
  contents << file.rdbuf();
  return std::move(contents).str();
}

/// What follows the header, when the checksum is right.
std::string_view checked(std::string_view contents, const std::string& path) {
  const size_t header = kGraphMagic.size() + sizeof(kGraphForm);
  TORCH_CHECK(contents.substr(0, kGraphMagic.size()) == kGraphMagic,
              "torch-lazy: ", printable(path), " is no graph saved by torch_lazy.save_graph");
  TORCH_CHECK(contents.size() >= header + sizeof(Hash), "torch-lazy: ", printable(path),
              " is no graph that can be loaded: it ends too early");
  uint64_t format = 0;
  std::memcpy(&format, contents.data() + kGraphMagic.size(), sizeof(format));
  TORCH_CHECK(format == kGraphForm, "torch-lazy: ", printable(path), " has the form ", format,
              " of saved graphs; this torch-lazy (" TORCH_LAZY_VERSION ") reads form ", kGraphForm);
  const std::string_view summed = contents.substr(0, contents.size() - sizeof(Hash));
  const Hash sum = hash_bytes(summed, kGraphForm);
  TORCH_CHECK(std::memcmp(sum.data(), contents.data() + summed.size(), sizeof(Hash)) == 0,
              "torch-lazy: ", printable(path),
              " is no graph that can be loaded: its checksum is wrong, the file is damaged");
  return summed.substr(header);
}

/// The calls of a file as a recording.
std::shared_ptr<const Recording> record(GraphReader& reader) {
  for (int pass = 1;; ++pass) {
    // The calls are made on zeros: what is executed on the way must not change the state.
    std::vector<at::Tensor> known = reader.make_known(/*with_data=*/false, /*arguments=*/true);
    Recorder recorder(known, {});
    const std::vector<at::Tensor> results = reader.record(known);
    auto recording = std::make_shared<Recording>(recorder.plan(results));
    if (recording->obstacle.empty()) {
      return recording;
    }
    if (pass == kPasses || !reader.executed()) {
      reader.damaged(recording->obstacle);
    }
  }
}

}  // namespace

SavedGraph load_graph(const std::string& path, const std::vector<std::string>& namespaces) {
  const std::string contents = read_file(path);
  GraphReader reader(checked(contents, path), path, namespaces);
  SavedGraph graph;
  graph.path_ = printable(path);
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> known;
  try {
    graph.recording_ = record(reader);
    known = reader.make_known(/*with_data=*/true, /*arguments=*/false);
  } catch (const DamagedGraph&) {
    throw;
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const c10::Error& error) {  // one of PyTorch's own, which does not know the file
    reader.damaged(error.what_without_backtrace());
  }
  for (size_t i = 0; i < known.size(); ++i) {
    if (i < reader.arguments()) {
      graph.arguments_.push_back(reader.known()[i].layout.shape_text());
    } else {
      graph.state_.emplace_back(reader.known()[i].name, known[i]);
    }
  }
  return graph;
}

std::vector<at::Tensor> SavedGraph::operator()(const std::vector<at::Tensor>& arguments) {
  const Recording& r = *recording_;
  TORCH_CHECK(arguments.size() == arguments_.size(), "torch-lazy: the graph of ", path_, " takes ",
              arguments_.size(), " tensors, but got ", arguments.size());
  std::vector<at::Tensor> moved;
  ReplayTensors tensors;
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const at::Tensor& given = arguments[i];
    const Layout& expected = r.known[i].layout;
    TORCH_CHECK(given.defined() && given.scalar_type() == expected.dtype &&
                    given.sizes() == at::IntArrayRef(expected.sizes),
                "torch-lazy: argument ", i, " of the graph of ", path_, " is ", arguments_[i],
                ", but got ", given.defined() ? Layout::of(given).shape_text() : "no tensor");
    at::Tensor tensor = is_lazy(given) ? given.detach() : given.detach().to(at::kLazy);
    const int64_t nbytes = r.nbytes[r.known[i].buffer];
    if (!expected.matches(tensor) || static_cast<int64_t>(tensor.storage().nbytes()) != nbytes) {
      at::Tensor copy = make_undefined(expected, nbytes, 0);
      copy.copy_(tensor);
      tensor = std::move(copy);
    }
    moved.push_back(std::move(tensor));
  }
  for (const at::Tensor& tensor : moved) {
    tensors.known.push_back(&tensor);
  }
  for (const auto& [name, tensor] : state_) {
    tensors.known.push_back(&tensor);
  }
  TORCH_CHECK(ready_to_replay(),
              "torch-lazy: a saved graph cannot be run while a function is recorded");
  TORCH_CHECK(matches(r, tensors), "torch-lazy: the arguments of the graph of ", path_,
              " share memory with each other or with its state");
  return replay(r, tensors);
}

}  // namespace torch_lazy
