// Following, growing and printing traces.
#include "ir/trace.h"

#include "base/metrics.h"
#include "base/settings.h"

#include <algorithm>
#include <cstring>
#include <sstream>

namespace torch_lazy {
namespace {

// How an operand that a segment meets for the first time lies there, in place of a place.
constexpr uint32_t kNewData = ~uint32_t{0};
constexpr uint32_t kNewUndefined = kNewData - 1;

constexpr size_t kExpectedChildren = 4;  // how many calls are compared before the table is asked
constexpr size_t kSyncsPerStep = 8;

uint64_t next_segment() {
  static uint64_t id = 0;  // guarded by the graph lock
  return ++id;
}

int64_t scope_of(const SyncRequest& request) {
  const int64_t device = request.device ? *request.device + 1 : 0;
  return device * 4 + (request.everything ? 2 : 0) + (request.to_write ? 1 : 0);
}

/// The asked values that the segment knows; any other has its data or is pending elsewhere.
std::vector<uint32_t> places_of(const Segment& segment, const SyncRequest& request) {
  std::vector<uint32_t> places;
  for (const Value* value : request.values) {
    if (value->segment == segment.id) {
      places.push_back(value->place);
    }
  }
  return places;
}

}  // namespace

// ---- Segment
// -------------------------------------------------------------------------------------

void Segment::begin(Trace* next) {
  id = next_segment();
  trace = next;
  at = next ? next->root() : nullptr;
  values.clear();
  nodes.clear();
  kept.clear();
  dead.clear();
}

void Segment::place(Value* value) {
  value->segment = id;
  value->place = static_cast<uint32_t>(values.size());
  values.push_back(value);
  kept.set(value->place, value->owner || value->readers);
}

void Segment::append(Node* node, Trace* recorder) {
  if (!at) {
    return;
  }
  if (recorder != trace) {
    return leave();
  }
  c10::SmallVector<uint32_t, 8> operands;
  for (Value* operand : node->operands) {
    if (operand->segment == id) {
      operands.push_back(operand->place);
      continue;
    }
    if (operand->pending() || operand->failure) {
      return leave();  // left over from a run that failed
    }
    operands.push_back(operand->undefined() ? kNewUndefined : kNewData);
    place(operand);
  }
  for (Value* output : node->outputs) {
    if (output) {
      place(output);
    }
  }
  node->place = static_cast<uint32_t>(nodes.size());
  nodes.push_back(node);
  at = trace->advance(at, node->description.get(), operands);
  trace->move_to(at);
}

// ---- Trace
// ---------------------------------------------------------------------------------------

Trace& Trace::of_this_thread() {
  thread_local Trace trace;
  return trace;
}

Trace::Trace() = default;

Trace::~Trace() {
  reset();
}

Description* Trace::expect(const OperatorInfo& op, const Key& key) const {
  const size_t count = std::min(cursor_->children.size(), kExpectedChildren);
  for (size_t i = 0; i < count; ++i) {
    Description* candidate = cursor_->children[i]->description.get();
    if (candidate->op == &op && candidate->key.size() == key.size() &&
        std::memcmp(candidate->key.data(), key.data(), key.size() * sizeof(uint64_t)) == 0) {
      return candidate;
    }
  }
  return nullptr;
}

TraceStep* Trace::advance(TraceStep* from, Description* description,
                          c10::ArrayRef<uint32_t> operands) {
  auto& children = from->children;
  for (size_t i = 0; i < children.size(); ++i) {
    TraceStep* child = children[i].get();
    if (child->description.get() == description &&
        operands == c10::ArrayRef<uint32_t>(child->operands)) {
      if (i > 0) {
        std::rotate(children.begin(), children.begin() + i, children.begin() + i + 1);
      }
      ++child->hits;
      description->op->reused->add_guarded();
      return child;
    }
  }
  if (!children.empty()) {
    static metrics::Counter& forked = metrics::counter("TrieForked");
    forked.add_guarded();
  }
  auto step = std::make_unique<TraceStep>();
  step->description = DescriptionPtr::reclaim_copy(description);
  step->operands.assign(operands.begin(), operands.end());
  children.insert(children.begin(), std::move(step));
  steps_ += 1 + operands.size() / 8;  // what it takes: a list's description is as long as the list
  return children.front().get();
}

KnownSync* Trace::find(Segment& segment, const SyncRequest& request) {
  const int64_t scope = scope_of(request);
  const std::vector<uint32_t> asked = places_of(segment, request);
  for (std::unique_ptr<KnownSync>& known : segment.at->syncs) {
    if (known->scope == scope && known->asked == asked && known->kept == segment.kept &&
        known->dead == segment.dead) {
      return known.get();
    }
  }
  return nullptr;
}

KnownSync* Trace::add(Segment& segment, const SyncRequest& request, const Collection& collection) {
  auto known = std::make_unique<KnownSync>();
  known->scope = scope_of(request);
  known->asked = places_of(segment, request);
  known->kept = segment.kept;
  known->dead = segment.dead;
  known->parameters = collection.parameters;
  known->kept_slots = collection.kept;
  for (const Value* value : collection.values) {
    TORCH_INTERNAL_ASSERT(value->segment == segment.id, "a run reads a value of another segment");
    known->values.push_back(value->place);
  }
  for (const Node* node : collection.nodes) {
    TORCH_INTERNAL_ASSERT(segment.nodes.at(node->place) == node,
                          "a run has a node of another segment");
    known->nodes.push_back(node->place);
  }
  known->after = std::make_unique<TraceStep>();
  steps_ += 1 + collection.nodes.size() / 8;  // what it takes, in steps
  auto& syncs = segment.at->syncs;
  if (syncs.size() >= kSyncsPerStep) {
    syncs.erase(syncs.begin());
  }
  syncs.push_back(std::move(known));
  return syncs.back().get();
}

void Trace::trim() {
  const auto limit = static_cast<size_t>(settings().trace_steps.load(std::memory_order_relaxed));
  if (steps_ > limit) {
    reset();
  }
}

void Trace::reset() {
  // Steps are freed one by one: a trace may be as long as a program.
  std::vector<std::unique_ptr<TraceStep>> steps;
  {
    GraphLock lock;
    Segment& segment = Program::instance().segment();
    if (segment.trace == this) {
      segment.leave();
      segment.trace = nullptr;
    }
    steps.push_back(std::make_unique<TraceStep>(std::move(root_)));
    root_ = TraceStep();
    cursor_ = &root_;
    steps_ = 0;
  }
  while (!steps.empty()) {
    std::unique_ptr<TraceStep> step = std::move(steps.back());
    steps.pop_back();
    for (std::unique_ptr<TraceStep>& child : step->children) {
      steps.push_back(std::move(child));
    }
    for (std::unique_ptr<KnownSync>& sync : step->syncs) {
      steps.push_back(std::move(sync->after));
    }
  }
}

std::string Trace::dot() const {
  std::ostringstream out;
  out << "digraph G {\n";
  std::vector<std::pair<const TraceStep*, size_t>> stack{{&root_, 0}};
  size_t ids = 0;
  while (!stack.empty()) {
    auto [step, id] = stack.back();
    stack.pop_back();
    if (step->description) {
      out << id << "[label=\"" << step->description->op->operator_name.name << ", " << step->hits
          << " hits\"]\n";
    }
    auto add = [&, parent = id](const TraceStep* child) {
      out << parent << " -> " << ++ids << "\n";
      stack.emplace_back(child, ids);
    };
    for (const std::unique_ptr<TraceStep>& child : step->children) {
      add(child.get());
    }
    for (const std::unique_ptr<KnownSync>& sync : step->syncs) {
      if (!sync->after->children.empty()) {
        add(sync->after.get());
      }
    }
  }
  out << "}\n";
  return out.str();
}

Collection collection_of(const KnownSync& known, const Segment& segment) {
  Collection collection;
  collection.nodes.reserve(known.nodes.size());
  for (uint32_t index : known.nodes) {
    Node* node = segment.nodes[index];
    collection.nodes.push_back(node);
    for (const c10::IValue& number : node->numbers) {
      collection.numbers.push_back(number);
    }
  }
  collection.values.reserve(known.values.size());
  for (uint32_t place : known.values) {
    collection.values.push_back(segment.values[place]);
  }
  collection.parameters = known.parameters;
  collection.kept = known.kept_slots;
  return collection;
}

}  // namespace torch_lazy
