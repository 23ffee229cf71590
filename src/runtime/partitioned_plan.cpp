// Parts of a graph one after the other: their data, their results, their failures.
#include "runtime/partitioned_plan.h"

#include "runtime/backend_choice.h"
#include "runtime/partition.h"
#include "runtime/plan_cache.h"
#include "runtime/real_tensor.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <sstream>
#include <unordered_set>

namespace torch_lazy {
namespace {

std::string nodes_text(const Graph& graph) {
  constexpr size_t kShown = 4;
  std::string text;
  for (size_t i = 0; i < std::min(kShown, graph.nodes.size()); ++i) {
    text += (i ? ", " : "") + graph.nodes[i].description->call_text();
  }
  if (graph.nodes.size() > kShown) {
    text += " and " + std::to_string(graph.nodes.size() - kShown) + " more";
  }
  return text;
}

bool same_device(at::Device a, at::Device b) {
  return a.type() == b.type() && (a.index() == b.index() || !a.has_index() || !b.has_index());
}

/// Where a slot's value comes from: which output of which node.
struct Origin {
  size_t node = 0;
  size_t output = 0;
};

struct Part {
  Subgraph subgraph;
  std::shared_ptr<const Graph> graph;  // the part's
  std::shared_ptr<Executable> executable;
  std::exception_ptr error;             // why there is no executable
  std::vector<Origin> origins;          // by root
  std::vector<uint32_t> last_versions;  // by slot
};

class PartitionedPlan : public Executable {
 public:
  PartitionedPlan(std::vector<Part> parts, Backend& plugin, Backend& base)
      : parts_(std::move(parts)),
        name_(plugin.name()),
        base_name_(base.name()),
        plugin_(plugin),
        own_memory_(plugin.memory() != real_device()) {}

  void run(Run& run) override {
    BelowEverything below;
    for (const Part& part : parts_) {
      run.completed = part.subgraph.begin;
      run_part(part, run);
    }
    run.completed += parts_.back().graph->nodes.size();
  }

  std::string text() const override {
    std::ostringstream out;
    for (const Part& part : parts_) {
      out << "backend " << (part.subgraph.owner == Owner::base ? base_name_ : name_) << ", "
          << part.graph->nodes.size() << " nodes:\n";
      if (part.executable) {
        out << part.executable->text();
      }
    }
    return out.str();
  }

  int64_t bytes() const override {
    int64_t bytes = 0;
    for (const Part& part : parts_) {
      bytes += bytes_of(*part.graph) + (part.executable ? part.executable->bytes() : 0);
    }
    return bytes;
  }

 private:
  /// Memory that someone outside shares, and the slot of the value that it has to hold afterwards.
  struct Shared {
    c10::Storage memory;
    uint32_t slot = 0;
  };

  void run_part(const Part& part, Run& run);
  void run_plugin(const Part& part, Run& local);
  void take_parameters(const Part& part, Run& run, Run& local, std::vector<Shared>& shared);
  void move_data(c10::Storage& data, bool to_plugin) const;
  void check_results(const Part& part, const Run& local) const;
  void fail(const Part& part, Run& local, Run& run, bool started) const;
  void write_shared(const Part& part, const std::vector<Shared>& shared, Run& local) const;

  std::vector<Part> parts_;
  std::string name_;
  std::string base_name_;
  Backend& plugin_;
  bool own_memory_;
};

void PartitionedPlan::move_data(c10::Storage& data, bool to_plugin) const {
  if (!own_memory_ || same_device(data.device(), plugin_.memory()) == to_plugin) {
    return;
  }
  try {
    data = to_plugin ? plugin_.upload(data) : plugin_.download(data);
    TORCH_CHECK(data, "it gave no data");
  } catch (...) {
    raise_from(name_, to_plugin ? "upload()" : "download()");
  }
}

void PartitionedPlan::take_parameters(const Part& part, Run& run, Run& local,
                                      std::vector<Shared>& shared) {
  const Subgraph& subgraph = part.subgraph;
  const bool plugin = subgraph.owner == Owner::plugin;
  local.slots.resize(part.graph->slots);
  auto numbers = run.numbers.begin() + subgraph.first_number;
  local.numbers.assign(numbers, numbers + part.graph->numbers);
  for (const Parameter& parameter : part.graph->parameters) {
    if (parameter.fresh) {
      continue;
    }
    c10::Storage& data = run.slots[subgraph.slots[parameter.slot]];
    if (!data) {
      data = allocate(parameter.nbytes);
    }
    if (plugin && parameter.donated && data.use_count() > 1) {
      const uint32_t last = part.last_versions[parameter.slot];
      if (last != parameter.slot) {
        shared.push_back({data, last});
      }
    }
    move_data(data, plugin);
    local.slots[parameter.slot] = data;
    if (parameter.donated) {
      data = c10::Storage();
    }
  }
}

void PartitionedPlan::run_part(const Part& part, Run& run) {
  if (part.error) {
    run.failed = part.graph->nodes.size();
    std::rethrow_exception(part.error);
  }
  std::vector<Shared> shared;
  Run local;
  bool started = false;
  try {
    take_parameters(part, run, local, shared);
    started = true;
    if (part.subgraph.owner == Owner::plugin) {
      run_plugin(part, local);
      write_shared(part, shared, local);
    } else {
      part.executable->run(local);
    }
  } catch (...) {
    fail(part, local, run, started);
    throw;
  }
  for (uint32_t root : part.graph->roots) {
    run.slots[part.subgraph.slots[root]] = std::move(local.slots[root]);
  }
}

void PartitionedPlan::run_plugin(const Part& part, Run& local) {
  try {
    part.executable->run(local);
  } catch (...) {
    const auto& nodes = part.graph->nodes;
    const bool one = local.failed == 1 && local.completed < nodes.size();
    raise_from(name_, "run() of " + (one ? nodes[local.completed].description->call_text()
                                         : nodes_text(*part.graph)));
  }
  local.completed = 0;  // if the results are not what was promised, none of them is used
  local.failed = 0;
  check_results(part, local);
}

void PartitionedPlan::check_results(const Part& part, const Run& local) const {
  const Graph& graph = *part.graph;
  TORCH_CHECK(local.slots.size() == graph.slots, "torch-lazy: backend '", name_, "' left ",
              local.slots.size(), " slots where there were ", graph.slots, ", in run() of ",
              nodes_text(graph));
  std::unordered_set<const void*> taken;  // memory of values that live on
  for (const Parameter& parameter : graph.parameters) {
    if (!parameter.donated && local.slots[parameter.slot]) {
      taken.insert(local.slots[parameter.slot].data());
    }
  }
  const std::vector<int64_t> bytes = graph.slot_bytes();
  for (size_t i = 0; i < graph.roots.size(); ++i) {
    const c10::Storage& result = local.slots[graph.roots[i]];
    const GraphNode& node = graph.nodes[part.origins[i].node];
    const size_t output = part.origins[i].output;
    const size_t fresh = node.description->fresh.size();
    auto which = [&] {
      return c10::str(output < fresh ? "result " : "written operand ",
                      output < fresh ? output : output - fresh, " of ",
                      node.description->call_text());
    };
    TORCH_CHECK(result, "torch-lazy: backend '", name_, "' gave no data for ", which(),
                ". Expected number of outputs: ", graph.roots.size(), ", got ",
                std::count_if(graph.roots.begin(), graph.roots.end(),
                              [&](uint32_t root) { return static_cast<bool>(local.slots[root]); }));
    const auto promised = static_cast<size_t>(bytes[graph.roots[i]]);
    // A written buffer may be larger than what is known of it; a new result has one size.
    TORCH_CHECK(output < fresh ? result.nbytes() == promised : result.nbytes() >= promised,
                "torch-lazy: backend '", name_, "' gave ", result.nbytes(), " bytes for ", which(),
                ", where ", promised, " were promised");
    TORCH_CHECK(same_device(result.device(), plugin_.memory()), "torch-lazy: backend '", name_,
                "' gave memory on ", result.device(), " for ", which(), ", but its memory is on ",
                plugin_.memory());
    TORCH_CHECK(promised == 0 || taken.insert(result.data()).second, "torch-lazy: backend '", name_,
                "' gave memory that another value uses for ", which());
  }
}

/// Gives the part's data back to the whole run, and says which nodes failed.
void PartitionedPlan::fail(const Part& part, Run& local, Run& run, bool started) const {
  const Graph& graph = *part.graph;
  const size_t count = graph.nodes.size();
  local.slots.resize(graph.slots);
  const size_t completed = std::min(local.completed, count - 1);
  const size_t rest = count - completed;
  size_t failed = local.failed ? std::min(local.failed, rest) : rest;

  // What later nodes need must be there, or they fail too.
  std::vector<char> there(graph.slots, 0);
  for (uint32_t slot = 0; slot < graph.slots; ++slot) {
    there[slot] = local.slots[slot] ? 1 : 0;
  }
  for (const Parameter& parameter : graph.parameters) {
    there[parameter.slot] |= parameter.fresh;
  }
  for (size_t i = completed; i < count; ++i) {
    for (int32_t output : graph.nodes[i].outputs) {
      if (output >= 0) {
        there[static_cast<size_t>(output)] = 1;
      }
    }
  }
  for (size_t i = completed + failed; i < count; ++i) {
    const auto& operands = graph.nodes[i].operands;
    if (!std::all_of(operands.begin(), operands.end(), [&](uint32_t s) { return there[s] != 0; })) {
      failed = rest;
      break;
    }
  }

  // Of several nodes that failed together nobody knows how far they came: what they may have
  // written in place is lost.
  std::vector<char> good(graph.slots, 0);
  for (const Parameter& parameter : graph.parameters) {
    good[parameter.slot] = 1;
  }
  for (size_t i = 0; i < completed; ++i) {
    for (int32_t output : graph.nodes[i].outputs) {
      if (output >= 0) {
        good[static_cast<size_t>(output)] = 1;
      }
    }
  }
  if (started && failed > 1) {
    std::vector<char> survives(graph.slots, 0);
    for (const Parameter& parameter : graph.parameters) {
      survives[parameter.slot] = !parameter.donated;
    }
    for (uint32_t root : graph.roots) {
      survives[root] = 1;
    }
    for (size_t i = completed; i < completed + failed; ++i) {
      for (const Write& write : graph.nodes[i].description->writes) {
        uint32_t base = graph.nodes[i].operands[write.operand];
        good[base] &= survives[base];
      }
    }
  }
  for (uint32_t slot = 0; slot < graph.slots; ++slot) {
    c10::Storage& outer = run.slots[part.subgraph.slots[slot]];
    if (good[slot] && !outer) {
      outer = std::move(local.slots[slot]);
    }
  }
  run.completed = part.subgraph.begin + completed;
  run.failed = failed;
}

/// A write to memory that someone outside shares is made in that memory.
void PartitionedPlan::write_shared(const Part& part, const std::vector<Shared>& shared,
                                   Run& local) const {
  if (shared.empty()) {
    return;
  }
  const std::vector<int64_t> sizes = part.graph->slot_bytes();
  for (const Shared& entry : shared) {
    c10::Storage& result = local.slots[entry.slot];
    if (!result || result.data() == entry.memory.data()) {
      continue;
    }
    move_data(result, /*to_plugin=*/false);
    const Layout bytes = bytes_layout(sizes[entry.slot]);
    real_tensor(entry.memory, bytes).copy_(real_tensor(result, bytes));
    result = entry.memory;
  }
}

std::vector<Origin> origins_of(const Graph& graph) {
  std::vector<Origin> by_slot(graph.slots);
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    for (size_t k = 0; k < graph.nodes[i].outputs.size(); ++k) {
      if (graph.nodes[i].outputs[k] >= 0) {
        by_slot[static_cast<size_t>(graph.nodes[i].outputs[k])] = {i, k};
      }
    }
  }
  std::vector<Origin> origins;
  for (uint32_t root : graph.roots) {
    origins.push_back(by_slot[root]);
  }
  return origins;
}

}  // namespace

void raise_from(const std::string& backend, const std::string& where) {
  const std::string text = "torch-lazy: backend '" + backend + "' failed in " + where;
  try {
    throw;
  } catch (c10::Error& error) {
    error.add_context(text);  // keeps its type, which is what Python sees
    throw;
  } catch (const std::exception& error) {
    throw std::runtime_error(text + ": " + error.what());
  } catch (...) {
    throw std::runtime_error(text + ": it threw something that is no std::exception");
  }
}

Compilation compile_parts(std::shared_ptr<const Graph> graph, Backend& plugin, Backend& base) {
  const std::string name = plugin.name();
  Compilation result;
  std::vector<Owner> owners(graph->nodes.size(), Owner::base);
  std::vector<std::exception_ptr> refusals;  // in the order of the refused nodes
  for (size_t i = 0; i < owners.size(); ++i) {
    const GraphNode& node = graph->nodes[i];
    try {
      try {
        owners[i] = plugin.takes(node) ? Owner::plugin : Owner::base;
      } catch (...) {
        raise_from(name, "takes() of " + node.description->call_text());
      }
    } catch (...) {
      owners[i] = Owner::refused;
      refusals.push_back(std::current_exception());
      result.failed = true;
    }
  }
  const bool own_memory = plugin.memory() != real_device();  // then data may have to be moved
  if (!own_memory &&
      std::all_of(owners.begin(), owners.end(), [](Owner o) { return o == Owner::base; })) {
    result.executable = base.compile(std::move(graph));
    return result;
  }
  std::vector<Part> parts;
  size_t refused = 0;
  for (Subgraph& subgraph : partition(*graph, owners)) {
    Part part;
    part.graph = std::make_shared<const Graph>(std::move(subgraph.graph));
    part.subgraph = std::move(subgraph);
    if (part.subgraph.owner == Owner::refused) {
      part.error = refusals[refused++];
    } else if (part.subgraph.owner == Owner::base) {
      part.executable = base.compile(part.graph);
    } else {
      part.origins = origins_of(*part.graph);
      part.last_versions = part.graph->last_versions();
      try {
        try {
          part.executable = plugin.compile(part.graph);
          TORCH_CHECK(part.executable, "it gave no executable");
        } catch (...) {
          raise_from(name, "compile() of " + nodes_text(*part.graph));
        }
      } catch (...) {
        part.error = std::current_exception();
        result.failed = true;
      }
    }
    parts.push_back(std::move(part));
  }
  result.executable = std::make_shared<PartitionedPlan>(std::move(parts), plugin, base);
  return result;
}

std::shared_ptr<Executable> compile_apart(
    const Graph& graph, const std::function<bool(const GraphNode&)>& alone,
    const std::function<std::shared_ptr<Executable>(std::shared_ptr<const Graph>, bool alone)>&
        compile) {
  std::vector<Owner> owners;
  for (const GraphNode& node : graph.nodes) {
    owners.push_back(alone(node) ? Owner::refused : Owner::base);
  }
  std::vector<Part> parts;
  for (Subgraph& subgraph : partition(graph, owners)) {
    Part part;
    part.graph = std::make_shared<const Graph>(std::move(subgraph.graph));
    part.executable = compile(part.graph, subgraph.owner == Owner::refused);
    subgraph.owner = Owner::base;
    part.subgraph = std::move(subgraph);
    parts.push_back(std::move(part));
  }
  return std::make_shared<PartitionedPlan>(std::move(parts), base_backend(), base_backend());
}

}  // namespace torch_lazy
