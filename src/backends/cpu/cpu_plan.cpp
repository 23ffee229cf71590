#include "backends/cpu/cpu_plan.h"

#include "backends/aten/aten_plan.h"
#include "backends/cpu/arena.h"
#include "backends/cpu/arguments.h"
#include "backends/cpu/index_error.h"
#include "backends/cpu/prepared_plan.h"
#include "backends/cpu/run_product.h"
#include "base/fault.h"
#include "compile/cost.h"
#include "runtime/partitioned_plan.h"
#include "runtime/real_tensor.h"
#include <torch_lazy/metrics.h>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <sstream>

namespace torch_lazy {
namespace {

using compile::Home;
using compile::Launch;

bool is_custom(const GraphNode& node) {
  return !node.description->op->aten;
}

/// As PyTorch does it: with all threads, and faster than memset where pages are fresh.
void clear(char* memory, int64_t bytes) {
  at::from_blob(memory, {bytes}, at::kByte).zero_();
}

class CpuPlan : public Executable {
 public:
  explicit CpuPlan(const std::shared_ptr<const Graph>& graph) : plan_(graph), fallback_(graph) {}
  void run(Run& run) override;
  std::string text() const override;
  int64_t bytes() const override { return plan_.bytes + fallback_.bytes(); }

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

  void execute(const PreparedBatch& batch, Frame& frame) const;
  void prepare_commit(Frame& frame) const;
  void allocate_for(const PreparedBatch& batch, Frame& frame) const;
  void launch(const PreparedBatch& batch, Frame& frame) const;
  void multiply(const PreparedBatch& batch, Frame& frame) const;
  at::Tensor tensor(const compile::View& view, Frame& frame) const;
  char* address(uint32_t slot, Frame& frame) const;
  void undo_moves(size_t batches, Run& run) const;
  std::vector<c10::Storage> parameter_data(const Run& run) const;
  void return_shared(Run& run, const std::vector<c10::Storage>& before) const;
  void explain_index_error(size_t batch, Frame& frame) const;

  const PreparedPlan plan_;
  AtenPlan fallback_;
};

char* CpuPlan::address(uint32_t slot, Frame& frame) const {
  const Home& home = plan_.memory.homes[slot];
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
  run.slots.resize(plan_.program.slots.size());
  Arena arena(plan_.memory.arena_bytes);
  Frame frame{run, arena, plan_.interpreter.begin(), std::vector<void*>(plan_.pointers.size()),
              std::vector<int64_t>(plan_.scalars)};
  size_t next = 0;
  bool overwritten = false;
  try {
    for (; next < plan_.batches.size(); ++next) {
      if (next == plan_.memory.commit) {  // from here on nothing may fail
        prepare_commit(frame);
      }
      if (next < plan_.memory.commit) {
        fault_point(Stage::execute);
      }
      overwritten = next >= plan_.memory.commit;
      execute(plan_.batches[next], frame);
    }
  } catch (...) {
    if (overwritten) {
      // Something was overwritten already, and memory ran out. Nothing was completed.
      undo_moves(next, run);
      run.slots.resize(plan_.graph->slots);
      run.completed = 0;
      run.failed = 0;
      throw;
    }
    if (run.only_attempt) {
      if (frame.index_error) {
        explain_index_error(next, frame);
      }
      run.completed = plan_.batches[next].node;
      throw;
    }
    // Nothing has changed: PyTorch's kernels do it again, up to what failed.
    static auto& counter = metrics::counter("CompiledRunFailed");
    counter.add();
    frame.state = Interpreter::State();
    run.slots.assign(plan_.graph->slots, c10::Storage());
    for (size_t i = 0; i < before.size(); ++i) {
      run.slots[plan_.graph->parameters[i].slot] = before[i];
    }
    if (frame.index_error) {
      return fallback_.run(run);  // it raises eager's own error
    }
    return fallback_.run_until(run, plan_.batches[next].node, std::current_exception());
  }
  frame.state = Interpreter::State();
  run.slots.resize(plan_.graph->slots);
  return_shared(run, before);
  run.completed = plan_.graph->nodes.size();
}

/// Raises eager's error, if it can still be found.
void CpuPlan::explain_index_error(size_t batch, Frame& frame) const {
  std::vector<uint32_t> nodes;
  std::vector<c10::Storage> slots = frame.run.slots;
  for (uint32_t i : plan_.memory.batches[batch].steps) {
    const compile::Step& step = plan_.program.steps[i];
    nodes.insert(nodes.end(), step.piece.nodes.begin(), step.piece.nodes.end());
    for (uint32_t slot : step.reads) {
      if (plan_.memory.homes[slot].kind == Home::Kind::arena && !slots[slot]) {
        slots[slot] = borrowed(address(slot, frame), plan_.program.slots[slot].nbytes);
      }
    }
  }
  raise_index_error(plan_.program, std::move(nodes), std::move(slots), frame.run);
}

/// Memory that someone outside shares gets what was written, as if it had been written in place.
void CpuPlan::return_shared(Run& run, const std::vector<c10::Storage>& before) const {
  for (const LastVersion& version : plan_.last_versions) {
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
  data.reserve(plan_.graph->parameters.size());
  for (const Parameter& parameter : plan_.graph->parameters) {
    data.push_back(run.slots[parameter.slot]);
  }
  if (run.only_attempt) {
    std::vector<char> needed(data.size(), 0);
    for (const LastVersion& version : plan_.last_versions) {
      needed[version.parameter] = 1;
    }
    for (size_t i = 0; i < data.size(); ++i) {
      if (plan_.graph->parameters[i].donated && !needed[i]) {
        data[i] = c10::Storage();
      }
    }
  }
  return data;
}

/// From here on nothing may fail. Whether the memory for the rest is to be had is tried out: to
/// hold all of it until the end would take as much as the whole step does.
void CpuPlan::prepare_commit(Frame& frame) const {
  frame.committed = true;
  if (plan_.memory.late_bytes > 0) {
    fault_point(Stage::allocate);
    make_room(plan_.memory.late_bytes);
    void* memory = std::malloc(static_cast<size_t>(plan_.memory.late_bytes));
    TORCH_CHECK_WITH(OutOfMemoryError, memory != nullptr,
                     "torch-lazy: not enough memory: ", plan_.memory.late_bytes,
                     " bytes are needed for the rest of a step");
    std::free(memory);
  }
}

void CpuPlan::allocate_for(const PreparedBatch& batch, Frame& frame) const {
  for (uint32_t slot : batch.made) {
    const Home::Kind kind = plan_.memory.homes[slot].kind;
    if (kind == Home::Kind::arena || frame.run.slots[slot]) {
      continue;
    }
    const int64_t nbytes = plan_.program.slots[slot].nbytes;
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
        run.slots[slot] = borrowed(address(slot, frame), plan_.program.slots[slot].nbytes);
      }
    }
    make_room(batch.call_bytes);
    batch.called->add();
    plan_.interpreter.execute(batch.node, run, frame.state);
  } else if (batch.product) {
    multiply(batch, frame);
  } else {
    for (const ContentCopy& copy : batch.copies) {
      std::memcpy(address(copy.to, frame), address(copy.from, frame),
                  static_cast<size_t>(std::min(plan_.program.slots[copy.to].nbytes,
                                               plan_.program.slots[copy.from].nbytes)));
    }
    for (uint32_t slot : batch.cleared) {
      clear(address(slot, frame), plan_.program.slots[slot].nbytes);
    }
    launch(batch, frame);
    for (const ContentCopy& move : batch.moves) {
      if (plan_.memory.homes[move.to].kind != Home::Kind::arena) {
        run.slots[move.to] = std::move(run.slots[move.from]);
      }
    }
  }
  for (uint32_t slot : batch.done) {
    if (plan_.interpreter.has_views(slot)) {
      plan_.interpreter.drop(slot, run, frame.state);
    } else if (run.slots[slot]) {
      run.slots[slot] = c10::Storage();
    }
  }
}

/// Gives storages that went on to later versions back: what is there stays reachable by its first.
void CpuPlan::undo_moves(size_t batches, Run& run) const {
  for (size_t b = batches; b-- > 0;) {
    const std::vector<ContentCopy>& moves = plan_.batches[b].moves;
    for (auto move = moves.rbegin(); move != moves.rend(); ++move) {
      if (!run.slots[move->from]) {
        run.slots[move->from] = std::move(run.slots[move->to]);
      }
    }
  }
}

at::Tensor CpuPlan::tensor(const compile::View& view, Frame& frame) const {
  const Home& home = plan_.memory.homes[view.slot];
  return real_tensor(
      home.kind == Home::Kind::arena
          ? borrowed(address(view.slot, frame), plan_.program.slots[view.slot].nbytes)
          : frame.run.slots[view.slot],
      view.layout);
}

void CpuPlan::multiply(const PreparedBatch& batch, Frame& frame) const {
  const compile::Product& product = *batch.product;
  if (batch.convolution) {
    const std::shared_ptr<Beside> beside =
        batch.weight >= 0 && frame.run.beside ? frame.run.beside(batch.weight) : nullptr;
    run_convolution(product, *batch.convolution, address(product.a.slot, frame),
                    address(product.b.slot, frame), address(product.out.slot, frame), beside.get());
  } else if (batch.own_product) {
    run_own(product, address(product.a.slot, frame), address(product.b.slot, frame),
            address(product.out.slot, frame));
  } else {
    run_aten(tensor(product.a, frame), tensor(product.b, frame), tensor(product.out, frame));
  }
}

/// How many of a launch's units its first elements are.
int64_t units_before(const Launch& launch, int64_t elements) {
  if (elements <= 0) {
    return 0;
  }
  if (elements >= launch.elements) {
    return launch.units;
  }
  const auto scaled = static_cast<__int128>(elements) * launch.units;
  return static_cast<int64_t>((scaled + launch.elements - 1) / launch.elements);
}

/// Threads share the elements of all launches: a row of one may have many more than one of another.
void CpuPlan::launch(const PreparedBatch& batch, Frame& frame) const {
  for (const PreparedLaunch& prepared : batch.launches) {
    const size_t end = prepared.first_pointer + prepared.pointers;
    for (size_t k = prepared.first_pointer; k < end; ++k) {
      const PointerSource& source = plan_.pointers[k];
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
    int64_t first = 0;  // element of the launch
    for (const PreparedLaunch& prepared : batch.launches) {
      const Launch& l = prepared.launch;
      call.begin = units_before(l, begin - first);
      call.end = units_before(l, end - first);
      if (call.begin < call.end) {
        call.pointers = frame.pointers.data() + prepared.first_pointer;
        call.numbers = l.numbers.data();
        call.arguments = frame.scalars.data() + prepared.first_scalar;
        call.tile = l.tile;
        prepared.kernel->function(&call);
      }
      first += l.elements;
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
    work(0, batch.elements);
  } else {
    at::parallel_for(0, batch.elements, compile::kParallelElements / 4, work);
  }
  frame.index_error = status != 0;
  TORCH_CHECK_INDEX(status == 0, "torch-lazy: an index is out of range");
}

std::string CpuPlan::text() const {
  std::ostringstream out;
  out << compile::text(plan_.program) << summary(plan_);
  return out.str();
}

bool CpuPlan::can_be_repeated() const {
  size_t custom = 0;
  size_t fallible = 0;
  for (const compile::Step& step : plan_.program.steps) {
    if (step.kind == compile::Step::Kind::call) {
      const GraphNode& node = plan_.graph->nodes[step.node];
      custom += is_custom(node) ? 1 : 0;
      fallible += compile::is_fallible(node) ? 1 : 0;
    }
  }
  return custom == 0 || (custom == 1 && fallible == 1);
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
