#include "backends/cpu/prepared_plan.h"

#include "backends/aten/aten_plan.h"
#include "backends/cpu/run_product.h"
#include "base/settings.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <sstream>
#include <string_view>

namespace torch_lazy {
namespace {

using compile::Home;
using compile::Step;

Schedule schedule_of_calls(const compile::Program& program, const compile::MemoryPlan& memory) {
  const Graph& graph = *program.graph;
  Schedule schedule;
  schedule.called.assign(graph.nodes.size(), 0);
  schedule.time.assign(graph.nodes.size(), 0);
  schedule.last_use = memory.last_use;
  for (const compile::Slot& slot : program.slots) {
    schedule.outlives.push_back(slot.survives);
  }
  for (size_t b = 0; b < memory.batches.size(); ++b) {
    for (uint32_t i : memory.batches[b].steps) {
      const Step& step = program.steps[i];
      if (step.kind != Step::Kind::call) {
        continue;
      }
      schedule.called[step.node] = 1;
      schedule.time[step.node] = b;
      for (const auto& [operand, slot] : step.instead) {
        schedule.instead[{step.node, operand}] = slot;
      }
      // A call writes into its base only where the memory plan says so.
      const GraphNode& node = graph.nodes[step.node];
      const Description& d = *node.description;
      for (size_t k = 0; k < d.writes.size(); ++k) {
        const int32_t output = node.outputs[d.fresh.size() + k];
        const uint32_t base = node.operands[d.writes[k].operand];
        if (output >= 0
                ? !memory.homes[output].in_place
                : memory.homes[base].kind == Home::Kind::outside && b < memory.last_fallible) {
          schedule.outlives[base] = 1;
        }
      }
    }
  }
  return schedule;
}

std::vector<LastVersion> find_last_versions(const Graph& graph) {
  std::vector<LastVersion> versions;
  const std::vector<uint32_t> last = graph.last_versions();
  for (uint32_t i = 0; i < graph.parameters.size(); ++i) {
    const Parameter& parameter = graph.parameters[i];
    if (parameter.donated && !parameter.fresh && last[parameter.slot] != parameter.slot) {
      versions.push_back({i, last[parameter.slot]});
    }
  }
  return versions;
}

void prepare_call(const Step& step, const PreparedPlan& plan, PreparedBatch& batch) {
  batch.call = true;
  batch.node = step.node;
  batch.called =
      &metrics::counter("CompiledCall_" + plan.graph->nodes[step.node].description->op->name);
  for (uint32_t slot : step.reads) {
    if (plan.memory.homes[slot].kind == Home::Kind::arena) {
      batch.operands.push_back(slot);
    }
  }
  for (uint32_t slot : step.writes) {
    if (!plan.memory.homes[slot].in_place) {
      batch.call_bytes += plan.program.slots[slot].nbytes;
    }
  }
}

/// The number of the parameter that is the slot; -1: it is none.
int64_t parameter_of(uint32_t slot, const Graph& graph) {
  for (size_t i = 0; i < graph.parameters.size(); ++i) {
    if (graph.parameters[i].slot == slot) {
      return static_cast<int64_t>(i);
    }
  }
  return -1;
}

void prepare_product(const Step& step, const Graph& graph, PreparedBatch& batch) {
  batch.product = &step.product;
  if (step.product.convolution) {
    batch.convolution = prepare_convolution(step.product);
    batch.weight = parameter_of(step.product.b.slot, graph);
  } else {
    batch.own_product = is_own(step.product);
  }
  batch.node = step.node;
  batch.made.push_back(step.product.out.slot);
}

/// What has to be done with the memory that a piece writes.
void prepare_writes(const Step& step, const PreparedPlan& plan, PreparedBatch& batch) {
  const std::vector<compile::Slot>& slots = plan.program.slots;
  for (uint32_t slot : step.writes) {
    const Home& home = plan.memory.homes[slot];
    const int32_t base = slots[slot].base;
    if (home.in_place) {
      if (slots[base].fresh) {
        batch.made.push_back(static_cast<uint32_t>(base));
      }
      batch.moves.push_back({static_cast<uint32_t>(base), slot});
      continue;
    }
    batch.made.push_back(slot);
    if (slots[slot].cleared) {
      batch.cleared.push_back(slot);
    }
    if (base >= 0 && !home.covered && !slots[base].fresh) {
      batch.copies.push_back({static_cast<uint32_t>(base), slot});
    }
  }
}

/// One table for all launches: a run goes through it from end to end.
void prepare_pointers(PreparedLaunch& prepared, PreparedPlan& plan) {
  const compile::Launch& launch = prepared.launch;
  prepared.first_pointer = plan.pointers.size();
  prepared.pointers = launch.slots.size();
  for (size_t k = 0; k < launch.slots.size(); ++k) {
    PointerSource source;
    source.slot = launch.slots[k];
    source.offset = launch.offsets[k];
    if (launch.scratch[k]) {
      source.kind = PointerSource::Kind::scratch;
    } else if (const Home& home = plan.memory.homes[source.slot]; home.kind == Home::Kind::arena) {
      source.kind = PointerSource::Kind::arena;
      source.offset += home.offset;
    }
    plan.pointers.push_back(source);
  }
}

void prepare_launch(const Step& step, PreparedPlan& plan, PreparedBatch& batch) {
  for (uint32_t node : step.piece.nodes) {
    batch.node = std::max(batch.node, node);
  }
  PreparedLaunch prepared;
  prepared.launch = compile::emit(step.piece, [&](uint32_t slot) {
    // A write in place and its base are one memory.
    const bool written =
        std::find(step.writes.begin(), step.writes.end(), slot) != step.writes.end();
    return written && plan.memory.homes[slot].in_place
               ? static_cast<uint32_t>(plan.program.slots[slot].base)
               : slot;
  });
  prepare_pointers(prepared, plan);
  // One optimizer's kernels for many tensors have the same numbers.
  if (!batch.launches.empty() && batch.launches.back().launch.scalars == prepared.launch.scalars) {
    prepared.first_scalar = batch.launches.back().first_scalar;
    prepared.scalars_are_there = true;
  } else {
    prepared.first_scalar = plan.scalars;
    plan.scalars += prepared.launch.scalars.size();
  }
  batch.units += prepared.launch.units;
  batch.elements += prepared.launch.elements;
  batch.scratch_bytes = std::max(batch.scratch_bytes, prepared.launch.scratch_bytes);
  batch.launches.push_back(std::move(prepared));
}

PreparedBatch prepare_batch(const compile::Batch& from, PreparedPlan& plan) {
  PreparedBatch batch;
  for (uint32_t i : from.steps) {
    const Step& step = plan.program.steps[i];
    for (uint32_t slot : step.reads) {
      if (plan.program.slots[slot].fresh) {
        batch.made.push_back(slot);
      }
    }
    switch (step.kind) {
      case Step::Kind::call:
        prepare_call(step, plan, batch);
        break;
      case Step::Kind::product:
        prepare_product(step, *plan.graph, batch);
        break;
      case Step::Kind::piece:
        prepare_writes(step, plan, batch);
        prepare_launch(step, plan, batch);
        break;
    }
  }
  return batch;
}

template <typename T>
int64_t heap_bytes(const std::vector<T>& list) {
  return static_cast<int64_t>(list.capacity() * sizeof(T));
}

/// Without machine code.
int64_t bytes_of(const PreparedPlan& plan) {
  int64_t bytes = sizeof(PreparedPlan) + heap_bytes(plan.program.slots) +
                  heap_bytes(plan.program.steps) + heap_bytes(plan.memory.batches) +
                  heap_bytes(plan.memory.homes) + heap_bytes(plan.memory.last_use) +
                  heap_bytes(plan.batches) + heap_bytes(plan.pointers) +
                  interpreter_bytes(*plan.graph, plan.program.slots.size());
  for (const Step& step : plan.program.steps) {
    bytes += heap_bytes(step.piece.accesses) + heap_bytes(step.piece.scalars) +
             heap_bytes(step.piece.terms) + heap_bytes(step.piece.nodes);
  }
  for (const compile::Batch& batch : plan.memory.batches) {
    bytes += heap_bytes(batch.steps) + heap_bytes(batch.done);
  }
  for (const PreparedBatch& batch : plan.batches) {
    bytes += heap_bytes(batch.operands) + heap_bytes(batch.launches) + heap_bytes(batch.copies) +
             heap_bytes(batch.cleared) + heap_bytes(batch.made) + heap_bytes(batch.moves) +
             heap_bytes(batch.done);
    for (const PreparedLaunch& prepared : batch.launches) {
      const compile::Launch& launch = prepared.launch;
      bytes += heap_bytes(launch.slots) + heap_bytes(launch.offsets) + heap_bytes(launch.scratch) +
               heap_bytes(launch.numbers) + heap_bytes(launch.scalars);
    }
  }
  return bytes;
}

/// About what the machine code of a kernel takes, as if it were the plan's alone.
int64_t code_bytes(std::string_view text) {
  constexpr int64_t kPages = 20 << 10;  // of code, constants and tables, each begun
  constexpr int64_t kPerByte = 2;
  return kPages + kPerByte * static_cast<int64_t>(text.size());
}

/// Machine code takes the place of the kernels' texts.
void prepare_kernels(PreparedPlan& plan) {
  static auto& kernel_count = metrics::counter("GraphKernels");
  static auto& launch_count = metrics::counter("GraphLaunches");
  static auto& product_count = metrics::counter("GraphProducts");
  static auto& call_count = metrics::counter("GraphCalls");
  std::vector<std::string> texts;
  for (PreparedBatch& batch : plan.batches) {
    (batch.call ? call_count : batch.product ? product_count : launch_count).add();
    for (PreparedLaunch& prepared : batch.launches) {
      texts.push_back(std::move(prepared.launch.kernel));
      prepared.launch.kernel = std::string();
    }
  }
  kernel_count.add(static_cast<int64_t>(texts.size()));
  for (const std::string_view text : std::set<std::string_view>(texts.begin(), texts.end())) {
    plan.bytes += code_bytes(text);
  }
  const auto start = std::chrono::steady_clock::now();
  const std::vector<KernelPtr> kernels = find_kernels(texts);
  if (!settings().compile_log.empty()) {
    const double milliseconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() * 1e3;
    compile::log(summary(plan) + "machine code: " + std::to_string(milliseconds) + " ms\n");
  }
  size_t next = 0;
  for (PreparedBatch& batch : plan.batches) {
    for (PreparedLaunch& prepared : batch.launches) {
      prepared.kernel = kernels[next++];
    }
  }
}

void find_memory_to_free(PreparedPlan& plan) {
  std::vector<char> has_storage;  // by slot
  for (const Home& home : plan.memory.homes) {
    has_storage.push_back(home.kind != Home::Kind::arena);
  }
  for (const PreparedBatch& batch : plan.batches) {
    for (uint32_t slot : batch.operands) {
      has_storage[slot] = 1;
    }
  }
  for (size_t b = 0; b < plan.batches.size(); ++b) {
    std::vector<uint32_t> done = plan.memory.batches[b].done;
    std::sort(done.begin(), done.end());
    done.erase(std::unique(done.begin(), done.end()), done.end());
    for (uint32_t slot : done) {
      if (has_storage[slot] || plan.interpreter.has_views(slot)) {
        plan.batches[b].done.push_back(slot);
      }
    }
  }
}

}  // namespace

PreparedPlan::PreparedPlan(const std::shared_ptr<const Graph>& graph)
    : graph(graph),
      program(compile::compile(graph, {has_own})),
      memory(compile::plan_memory(program)),
      interpreter(graph, schedule_of_calls(program, memory)),
      last_versions(find_last_versions(*graph)) {
  for (const compile::Batch& batch : memory.batches) {
    batches.push_back(prepare_batch(batch, *this));
  }
  prepare_kernels(*this);
  find_memory_to_free(*this);
  bytes += bytes_of(*this);
}

std::string summary(const PreparedPlan& plan) {
  std::ostringstream out;
  size_t kernels = 0;
  size_t operators = 0;
  for (const Step& step : plan.program.steps) {
    if (step.kind == Step::Kind::piece) {
      out << "kernel " << kernels++ << ": " << step.piece.terms.size() << " terms, "
          << step.piece.nodes.size() << " operators:";
      operators += step.piece.nodes.size();
      for (uint32_t node : step.piece.nodes) {
        out << " " << plan.graph->nodes[node].description->op->name;
      }
      out << "\n";
    }
  }
  out << plan.graph->nodes.size() << " operators: " << kernels << " kernels with " << operators
      << ", the rest " << plan.program.steps.size() - kernels << " products and calls; "
      << plan.memory.batches.size() << " batches, arena " << plan.memory.arena_bytes
      << " bytes, with blocks at most " << plan.memory.live_bytes << " in use\n";
  return out.str();
}

}  // namespace torch_lazy
