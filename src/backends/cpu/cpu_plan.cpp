#include "backends/cpu/cpu_plan.h"

#include "backends/aten/aten_plan.h"
#include "backends/aten/interpreter.h"
#include "backends/cpu/arena.h"
#include "backends/cpu/arguments.h"
#include "backends/cpu/convolution.h"
#include "backends/cpu/index_error.h"
#include "backends/cpu/kernel_library.h"
#include "backends/cpu/run_product.h"
#include "base/fault.h"
#include "base/settings.h"
#include "compile/cost.h"
#include "compile/emit.h"
#include "runtime/partitioned_plan.h"
#include "runtime/real_tensor.h"
#include <torch_lazy/metrics.h>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <sstream>

namespace torch_lazy {
namespace {

using compile::Home;
using compile::Launch;

struct PreparedLaunch {
  Launch launch;
  KernelPtr kernel;
  size_t first_pointer = 0;  // in the run's tables
  size_t pointers = 0;
  size_t first_scalar = 0;
  bool scalars_are_there = false;  // they are those of the launch before it
};

/// Where a pointer that a kernel gets comes from.
struct PointerSource {
  enum class Kind : uint8_t { scratch, arena, storage };
  Kind kind = Kind::storage;
  uint32_t slot = 0;   // storage
  int64_t offset = 0;  // in bytes, from the arena's or the storage's beginning
};

/// A copy of a base's content, made before a write that is not in place and not of everything.
struct ContentCopy {
  uint32_t from = 0;
  uint32_t to = 0;
};

struct PreparedBatch {
  bool call = false;
  const compile::Product* product = nullptr;
  bool own_product = false;            // decided once: the same bits in every run
  metrics::Counter* called = nullptr;  // call
  int64_t call_bytes = 0;              // call: of its results
  uint32_t node = 0;                   // the last one that it computes
  std::vector<uint32_t> operands;      // call: arena slots that need a storage
  std::vector<PreparedLaunch> launches;
  std::vector<ContentCopy> copies;
  std::vector<uint32_t> cleared;   // slots whose memory is zeroed before
  std::vector<uint32_t> made;      // slots with memory of their own that appear here
  std::vector<ContentCopy> moves;  // writes in place: the storage goes on to the next version
  std::vector<uint32_t> done;      // slots to let go of: what is in the arena alone needs nothing
  int64_t units = 0;
  int64_t elements = 0;
  int64_t scratch_bytes = 0;
};

bool is_custom(const GraphNode& node) {
  return !node.description->op->aten;
}

/// As PyTorch does it: with all threads, and faster than memset where pages are fresh.
void clear(char* memory, int64_t bytes) {
  at::from_blob(memory, {bytes}, at::kByte).zero_();
}

class CpuPlan : public Executable {
 public:
  explicit CpuPlan(const std::shared_ptr<const Graph>& graph);
  void run(Run& run) override;
  std::string text() const override;

  /// After a failure everything before it runs again. A custom operator, which may do anything,
  /// must not be among that.
  bool can_be_repeated() const;

 private:
  struct Frame {
    Run& run;
    Arena& arena;
    Interpreter::State state;
    std::vector<void*> pointers;
    std::vector<int64_t> scalars;
    bool index_error = false;  // a kernel found an index that is out of range
    bool committed = false;    // memory is sure to be there
  };

  void prepare_batches();
  void prepare_pointers(PreparedLaunch& prepared);
  void execute(const PreparedBatch& batch, Frame& frame) const;
  void prepare_commit(Frame& frame) const;
  void allocate_for(const PreparedBatch& batch, Frame& frame) const;
  void launch(const PreparedBatch& batch, Frame& frame) const;
  void multiply(const PreparedBatch& batch, Frame& frame) const;
  at::Tensor tensor(const compile::View& view, Frame& frame) const;
  char* address(uint32_t slot, Frame& frame) const;
  std::string summary() const;
  void find_last_versions();
  void find_memory_to_free();
  void undo_moves(size_t batches, Run& run) const;
  std::vector<c10::Storage> parameter_data(const Run& run) const;
  void return_shared(Run& run, const std::vector<c10::Storage>& before) const;
  void explain_index_error(size_t batch, Frame& frame) const;

  std::shared_ptr<const Graph> graph_;
  compile::Program program_;
  compile::MemoryPlan memory_;
  std::vector<PreparedBatch> batches_;
  struct LastVersion {
    uint32_t parameter;  // which of the graph's
    uint32_t last;       // slot
  };
  std::vector<LastVersion> last_versions_;
  std::unique_ptr<Interpreter> interpreter_;
  AtenPlan fallback_;
  std::vector<PointerSource> pointers_;  // of all launches, in order
  size_t scalars_ = 0;
};

CpuPlan::CpuPlan(const std::shared_ptr<const Graph>& graph)
    : graph_(graph),
      program_(compile::compile(graph, {has_convolution})),
      memory_(compile::plan_memory(program_)),
      fallback_(graph) {
  prepare_batches();
  find_last_versions();
  Schedule schedule;
  schedule.called.assign(graph_->nodes.size(), 0);
  schedule.time.assign(graph_->nodes.size(), 0);
  schedule.last_use.assign(program_.slots.size(), 0);
  schedule.outlives.assign(program_.slots.size(), 0);
  for (size_t b = 0; b < batches_.size(); ++b) {
    if (batches_[b].call) {
      const uint32_t node = batches_[b].node;
      schedule.called[node] = 1;
      schedule.time[node] = b;
    }
  }
  for (uint32_t slot = 0; slot < program_.slots.size(); ++slot) {
    schedule.last_use[slot] = memory_.last_use[slot];
    schedule.outlives[slot] = program_.slots[slot].survives;
  }
  for (const compile::Step& step : program_.steps) {
    for (const auto& [operand, slot] : step.instead) {
      schedule.instead[{step.node, operand}] = slot;
    }
  }
  // A call writes into its base only where the memory plan says so.
  for (size_t b = 0; b < batches_.size(); ++b) {
    if (batches_[b].call) {
      const GraphNode& node = graph_->nodes[batches_[b].node];
      const Description& d = *node.description;
      for (size_t k = 0; k < d.writes.size(); ++k) {
        const int32_t output = node.outputs[d.fresh.size() + k];
        const uint32_t base = node.operands[d.writes[k].operand];
        if (output >= 0
                ? !memory_.homes[output].in_place
                : memory_.homes[base].kind == Home::Kind::outside && b < memory_.last_fallible) {
          schedule.outlives[base] = 1;
        }
      }
    }
  }
  interpreter_ = std::make_unique<Interpreter>(graph_, schedule);
  find_memory_to_free();
}

void CpuPlan::prepare_batches() {
  std::vector<std::string> texts;
  for (const compile::Batch& from : memory_.batches) {
    PreparedBatch batch;
    for (uint32_t i : from.steps) {
      const compile::Step& step = program_.steps[i];
      for (uint32_t slot : step.reads) {
        if (program_.slots[slot].fresh) {
          batch.made.push_back(slot);
        }
      }
      if (step.kind == compile::Step::Kind::call) {
        batch.call = true;
        batch.node = step.node;
        batch.called =
            &metrics::counter("CompiledCall_" + graph_->nodes[step.node].description->op->name);
        for (uint32_t slot : step.reads) {
          if (memory_.homes[slot].kind == Home::Kind::arena) {
            batch.operands.push_back(slot);
          }
        }
        for (uint32_t slot : step.writes) {
          if (!memory_.homes[slot].in_place) {
            batch.call_bytes += program_.slots[slot].nbytes;
          }
        }
        continue;
      }
      if (step.kind == compile::Step::Kind::product) {
        batch.product = &step.product;
        batch.own_product = is_own(step.product);
        batch.node = step.node;
        batch.made.push_back(step.product.out.slot);
        continue;
      }
      for (uint32_t slot : step.writes) {
        const Home& home = memory_.homes[slot];
        const int32_t base = program_.slots[slot].base;
        if (home.in_place) {
          if (program_.slots[base].fresh) {
            batch.made.push_back(static_cast<uint32_t>(base));
          }
          batch.moves.push_back({static_cast<uint32_t>(base), slot});
          continue;
        }
        batch.made.push_back(slot);
        if (program_.slots[slot].cleared) {
          batch.cleared.push_back(slot);
        }
        if (base >= 0 && !home.covered && !program_.slots[base].fresh) {
          batch.copies.push_back({static_cast<uint32_t>(base), slot});
        }
      }
      for (uint32_t node : step.piece.nodes) {
        batch.node = std::max(batch.node, node);
      }
      PreparedLaunch prepared;
      prepared.launch = compile::emit(step.piece, [&](uint32_t slot) {
        // A write in place and its base are one memory.
        const bool written =
            std::find(step.writes.begin(), step.writes.end(), slot) != step.writes.end();
        return written && memory_.homes[slot].in_place
                   ? static_cast<uint32_t>(program_.slots[slot].base)
                   : slot;
      });
      prepare_pointers(prepared);
      // One optimizer's kernels for many tensors have the same numbers.
      if (!batch.launches.empty() &&
          batch.launches.back().launch.scalars == prepared.launch.scalars) {
        prepared.first_scalar = batch.launches.back().first_scalar;
        prepared.scalars_are_there = true;
      } else {
        prepared.first_scalar = scalars_;
        scalars_ += prepared.launch.scalars.size();
      }
      batch.units += prepared.launch.units;
      batch.elements += prepared.launch.elements;
      batch.scratch_bytes = std::max(batch.scratch_bytes, prepared.launch.scratch_bytes);
      texts.push_back(prepared.launch.kernel);
      batch.launches.push_back(std::move(prepared));
    }
    batches_.push_back(std::move(batch));
  }
  static auto& kernel_count = metrics::counter("GraphKernels");
  static auto& launch_count = metrics::counter("GraphLaunches");
  static auto& product_count = metrics::counter("GraphProducts");
  static auto& call_count = metrics::counter("GraphCalls");
  kernel_count.add(static_cast<int64_t>(texts.size()));
  for (const PreparedBatch& batch : batches_) {
    (batch.call ? call_count : batch.product ? product_count : launch_count).add();
  }
  const auto start = std::chrono::steady_clock::now();
  const std::vector<KernelPtr> kernels = find_kernels(texts);
  if (!settings().compile_log.empty()) {
    const double milliseconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() * 1e3;
    compile::log(summary() + "machine code: " + std::to_string(milliseconds) + " ms\n");
  }
  size_t next = 0;
  for (PreparedBatch& batch : batches_) {
    for (PreparedLaunch& prepared : batch.launches) {
      prepared.kernel = kernels[next++];
      prepared.launch.kernel = std::string();
    }
  }
}

/// One table for all launches: a run goes through it from end to end.
void CpuPlan::prepare_pointers(PreparedLaunch& prepared) {
  Launch& launch = prepared.launch;
  prepared.first_pointer = pointers_.size();
  prepared.pointers = launch.slots.size();
  for (size_t k = 0; k < launch.slots.size(); ++k) {
    PointerSource source;
    source.slot = launch.slots[k];
    source.offset = launch.offsets[k];
    if (launch.scratch[k]) {
      source.kind = PointerSource::Kind::scratch;
    } else if (const Home& home = memory_.homes[source.slot]; home.kind == Home::Kind::arena) {
      source.kind = PointerSource::Kind::arena;
      source.offset += home.offset;
    }
    pointers_.push_back(source);
  }
}

char* CpuPlan::address(uint32_t slot, Frame& frame) const {
  const Home& home = memory_.homes[slot];
  if (home.kind == Home::Kind::arena) {
    return frame.arena.at(home.offset);
  }
  const c10::Storage& storage = frame.run.slots[slot];
  TORCH_INTERNAL_ASSERT(storage, "slot ", slot, " has no data");
  return static_cast<char*>(const_cast<void*>(storage.data()));
}

void CpuPlan::run(Run& run) {
  BelowEverything below;
  const std::vector<c10::Storage> before = parameter_data(run);
  run.slots.resize(program_.slots.size());
  Arena arena(memory_.arena_bytes);
  Frame frame{run, arena, interpreter_->begin(), std::vector<void*>(pointers_.size()),
              std::vector<int64_t>(scalars_)};
  size_t next = 0;
  bool overwritten = false;
  try {
    for (; next < batches_.size(); ++next) {
      if (next == memory_.commit) {  // from here on nothing may fail
        prepare_commit(frame);
      }
      if (next < memory_.commit) {
        fault_point(Stage::execute);
      }
      overwritten = next >= memory_.commit;
      execute(batches_[next], frame);
    }
  } catch (...) {
    if (overwritten) {
      // Something was overwritten already, and memory ran out. Nothing was completed.
      undo_moves(next, run);
      run.slots.resize(graph_->slots);
      run.completed = 0;
      run.failed = 0;
      throw;
    }
    if (run.only_attempt) {
      if (frame.index_error) {
        explain_index_error(next, frame);
      }
      run.completed = batches_[next].node;
      throw;
    }
    // Nothing has changed: PyTorch's kernels do it again, up to what failed.
    static auto& counter = metrics::counter("CompiledRunFailed");
    counter.add();
    frame.state = Interpreter::State();
    run.slots.assign(graph_->slots, c10::Storage());
    for (size_t i = 0; i < before.size(); ++i) {
      run.slots[graph_->parameters[i].slot] = before[i];
    }
    if (frame.index_error) {
      return fallback_.run(run);  // it raises eager's own error
    }
    return fallback_.run_until(run, batches_[next].node, std::current_exception());
  }
  frame.state = Interpreter::State();
  run.slots.resize(graph_->slots);
  return_shared(run, before);
  run.completed = graph_->nodes.size();
}

/// Raises eager's error, if it can still be found.
void CpuPlan::explain_index_error(size_t batch, Frame& frame) const {
  std::vector<uint32_t> nodes;
  std::vector<c10::Storage> slots = frame.run.slots;
  for (uint32_t i : memory_.batches[batch].steps) {
    const compile::Step& step = program_.steps[i];
    nodes.insert(nodes.end(), step.piece.nodes.begin(), step.piece.nodes.end());
    for (uint32_t slot : step.reads) {
      if (memory_.homes[slot].kind == Home::Kind::arena && !slots[slot]) {
        slots[slot] = borrowed(address(slot, frame), program_.slots[slot].nbytes);
      }
    }
  }
  raise_index_error(program_, std::move(nodes), std::move(slots), frame.run);
}

/// Memory that someone outside shares gets what was written, as if it had been written in place.
void CpuPlan::return_shared(Run& run, const std::vector<c10::Storage>& before) const {
  for (const LastVersion& version : last_versions_) {
    const c10::Storage& original = before[version.parameter];
    c10::Storage& result = run.slots[version.last];
    if (original && result && result.data() != original.data() && original.use_count() > 1 &&
        result.nbytes() == original.nbytes()) {
      copy_bytes(result, original);
      result = original;
    }
  }
}

/// The data of the parameters. Where nobody tries again, what is not needed after the run stays the
/// run's own, and is freed at its last use.
std::vector<c10::Storage> CpuPlan::parameter_data(const Run& run) const {
  std::vector<c10::Storage> data;
  data.reserve(graph_->parameters.size());
  for (const Parameter& parameter : graph_->parameters) {
    data.push_back(run.slots[parameter.slot]);
  }
  if (run.only_attempt) {
    std::vector<char> needed(data.size(), 0);
    for (const LastVersion& version : last_versions_) {
      needed[version.parameter] = 1;
    }
    for (size_t i = 0; i < data.size(); ++i) {
      if (graph_->parameters[i].donated && !needed[i]) {
        data[i] = c10::Storage();
      }
    }
  }
  return data;
}

/// The parameters that are written, and the slots of their buffers' last versions.
void CpuPlan::find_last_versions() {
  const std::vector<uint32_t> last = graph_->last_versions();
  for (uint32_t i = 0; i < graph_->parameters.size(); ++i) {
    const Parameter& parameter = graph_->parameters[i];
    if (parameter.donated && !parameter.fresh && last[parameter.slot] != parameter.slot) {
      last_versions_.push_back({i, last[parameter.slot]});
    }
  }
}

/// From here on nothing may fail. Whether the memory for the rest is to be had is tried out: to
/// hold all of it until the end would take as much as the whole step does.
void CpuPlan::prepare_commit(Frame& frame) const {
  frame.committed = true;
  if (memory_.late_bytes > 0) {
    fault_point(Stage::allocate);
    make_room(memory_.late_bytes);
    void* memory = std::malloc(static_cast<size_t>(memory_.late_bytes));
    TORCH_CHECK_WITH(OutOfMemoryError, memory != nullptr,
                     "torch-lazy: not enough memory: ", memory_.late_bytes,
                     " bytes are needed for the rest of a step");
    std::free(memory);
  }
}

void CpuPlan::allocate_for(const PreparedBatch& batch, Frame& frame) const {
  for (uint32_t slot : batch.made) {
    const Home::Kind kind = memory_.homes[slot].kind;
    if (kind == Home::Kind::arena || frame.run.slots[slot]) {
      continue;
    }
    const int64_t nbytes = program_.slots[slot].nbytes;
    if (!frame.committed) {
      fault_point(Stage::allocate);
    }
    if (kind == Home::Kind::block) {
      frame.run.slots[slot] = take_block(nbytes);
    } else {
      make_room(nbytes);
      frame.run.slots[slot] = at::empty({nbytes}, at::kByte).storage();
    }
  }
}

void CpuPlan::execute(const PreparedBatch& batch, Frame& frame) const {
  Run& run = frame.run;
  allocate_for(batch, frame);
  if (batch.call) {
    for (uint32_t slot : batch.operands) {
      if (!run.slots[slot]) {
        run.slots[slot] = borrowed(address(slot, frame), program_.slots[slot].nbytes);
      }
    }
    make_room(batch.call_bytes);
    batch.called->add();
    interpreter_->execute(batch.node, run, frame.state);
  } else if (batch.product) {
    multiply(batch, frame);
  } else {
    for (const ContentCopy& copy : batch.copies) {
      std::memcpy(address(copy.to, frame), address(copy.from, frame),
                  static_cast<size_t>(
                      std::min(program_.slots[copy.to].nbytes, program_.slots[copy.from].nbytes)));
    }
    for (uint32_t slot : batch.cleared) {
      clear(address(slot, frame), program_.slots[slot].nbytes);
    }
    launch(batch, frame);
    for (const ContentCopy& move : batch.moves) {
      if (memory_.homes[move.to].kind != Home::Kind::arena) {
        run.slots[move.to] = std::move(run.slots[move.from]);
      }
    }
  }
  for (uint32_t slot : batch.done) {
    if (interpreter_->has_views(slot)) {
      interpreter_->drop(slot, run, frame.state);
    } else if (run.slots[slot]) {
      run.slots[slot] = c10::Storage();
    }
  }
}

void CpuPlan::find_memory_to_free() {
  std::vector<char> has_storage(program_.slots.size(), 0);
  for (uint32_t slot = 0; slot < program_.slots.size(); ++slot) {
    has_storage[slot] = memory_.homes[slot].kind != Home::Kind::arena;
  }
  for (const PreparedBatch& batch : batches_) {
    for (uint32_t slot : batch.operands) {
      has_storage[slot] = 1;
    }
  }
  for (size_t b = 0; b < batches_.size(); ++b) {
    std::vector<uint32_t> done = memory_.batches[b].done;
    std::sort(done.begin(), done.end());
    done.erase(std::unique(done.begin(), done.end()), done.end());
    for (uint32_t slot : done) {
      if (has_storage[slot] || interpreter_->has_views(slot)) {
        batches_[b].done.push_back(slot);
      }
    }
  }
}

/// Gives storages that went on to later versions back: what is there stays reachable by its first.
void CpuPlan::undo_moves(size_t batches, Run& run) const {
  for (size_t b = batches; b-- > 0;) {
    const std::vector<ContentCopy>& moves = batches_[b].moves;
    for (auto move = moves.rbegin(); move != moves.rend(); ++move) {
      if (!run.slots[move->from]) {
        run.slots[move->from] = std::move(run.slots[move->to]);
      }
    }
  }
}

at::Tensor CpuPlan::tensor(const compile::View& view, Frame& frame) const {
  const Home& home = memory_.homes[view.slot];
  return real_tensor(home.kind == Home::Kind::arena
                         ? borrowed(address(view.slot, frame), program_.slots[view.slot].nbytes)
                         : frame.run.slots[view.slot],
                     view.layout);
}

void CpuPlan::multiply(const PreparedBatch& batch, Frame& frame) const {
  const compile::Product& product = *batch.product;
  if (batch.own_product) {
    run_own(product, address(product.a.slot, frame), address(product.b.slot, frame),
            address(product.out.slot, frame));
  } else {
    run_aten(tensor(product.a, frame), tensor(product.b, frame), tensor(product.out, frame));
  }
}

void CpuPlan::launch(const PreparedBatch& batch, Frame& frame) const {
  for (const PreparedLaunch& prepared : batch.launches) {
    const size_t end = prepared.first_pointer + prepared.pointers;
    for (size_t k = prepared.first_pointer; k < end; ++k) {
      const PointerSource& source = pointers_[k];
      if (source.kind == PointerSource::Kind::arena) {
        frame.pointers[k] = frame.arena.at(source.offset);
      } else if (source.kind == PointerSource::Kind::storage) {
        frame.pointers[k] = address(source.slot, frame) + source.offset;
      }
    }
    if (prepared.scalars_are_there) {
      continue;
    }
    const Launch& l = prepared.launch;
    for (size_t k = 0; k < l.scalars.size(); ++k) {
      frame.scalars[prepared.first_scalar + k] = argument_bits(l.scalars[k], frame.run);
    }
  }
  int64_t status = 0;
  auto work = [&](int64_t begin, int64_t end) {
    codegen::Call call;
    call.scratch = batch.scratch_bytes > 0 ? scratch_memory(batch.scratch_bytes) : nullptr;
    int64_t local_status = 0;
    call.status = &local_status;
    int64_t first = 0;  // unit of the launch
    for (const PreparedLaunch& prepared : batch.launches) {
      const Launch& l = prepared.launch;
      const int64_t from = std::max(begin, first);
      const int64_t to = std::min(end, first + l.units);
      if (from < to) {
        call.pointers = frame.pointers.data() + prepared.first_pointer;
        call.numbers = l.numbers.data();
        call.arguments = frame.scalars.data() + prepared.first_scalar;
        call.begin = from - first;
        call.end = to - first;
        call.tile = l.tile;
        prepared.kernel->function(&call);
      }
      first += l.units;
      if (first >= end) {
        break;
      }
    }
    if (local_status != 0) {
      __atomic_store_n(&status, local_status, __ATOMIC_RELAXED);
    }
  };
  if (batch.elements < compile::kParallelElements || batch.units == 1 ||
      at::get_num_threads() == 1) {
    work(0, batch.units);
  } else {
    const int64_t grain = std::max<int64_t>(
        1, batch.units * (compile::kParallelElements / 4) / std::max<int64_t>(1, batch.elements));
    at::parallel_for(0, batch.units, grain, work);
  }
  frame.index_error = status != 0;
  TORCH_CHECK_INDEX(status == 0, "torch-lazy: an index is out of range");
}

std::string CpuPlan::text() const {
  std::ostringstream out;
  out << compile::text(program_) << summary();
  return out.str();
}

bool CpuPlan::can_be_repeated() const {
  size_t custom = 0;
  size_t fallible = 0;
  for (const compile::Step& step : program_.steps) {
    if (step.kind == compile::Step::Kind::call) {
      const GraphNode& node = graph_->nodes[step.node];
      custom += is_custom(node) ? 1 : 0;
      fallible += compile::is_fallible(node) ? 1 : 0;
    }
  }
  return custom == 0 || (custom == 1 && fallible == 1);
}

/// Which operators became which kernels.
std::string CpuPlan::summary() const {
  std::ostringstream out;
  size_t kernels = 0;
  size_t operators = 0;
  for (const compile::Step& step : program_.steps) {
    if (step.kind == compile::Step::Kind::piece) {
      out << "kernel " << kernels++ << ": " << step.piece.terms.size() << " terms, "
          << step.piece.nodes.size() << " operators:";
      operators += step.piece.nodes.size();
      for (uint32_t node : step.piece.nodes) {
        out << " " << graph_->nodes[node].description->op->name;
      }
      out << "\n";
    }
  }
  out << graph_->nodes.size() << " operators: " << kernels << " kernels with " << operators
      << ", the rest " << program_.steps.size() - kernels << " products and calls; "
      << memory_.batches.size() << " batches, arena " << memory_.arena_bytes
      << " bytes, with blocks at most " << memory_.live_bytes << " in use\n";
  return out.str();
}

}  // namespace

std::shared_ptr<Executable> make_cpu_plan(const std::shared_ptr<const Graph>& graph) {
  static auto& plans = metrics::counter("GraphCompiled");
  static auto& time = metrics::metric("GraphCompileTime", metrics::Kind::time);
  metrics::TimedSection timed(time);
  plans.add();
  if (std::count_if(graph->nodes.begin(), graph->nodes.end(), is_custom) <= 1) {
    auto plan = std::make_shared<CpuPlan>(graph);
    if (plan->can_be_repeated()) {
      return plan;
    }
  }
  auto compile = [](const std::shared_ptr<const Graph>& part,
                    bool custom) -> std::shared_ptr<Executable> {
    if (custom) {
      return std::make_shared<AtenPlan>(part);
    }
    return std::make_shared<CpuPlan>(part);
  };
  return compile_apart(*graph, is_custom, compile);
}

}  // namespace torch_lazy
