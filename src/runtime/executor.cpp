// Requests, plans, scheduling.
#include "runtime/executor.h"

#include "base/fault.h"
#include "base/hooks.h"
#include "base/metrics.h"
#include "base/scopes.h"
#include "base/settings.h"
#include "ir/trace.h"
#include "runtime/backend_choice.h"
#include "runtime/failure.h"
#include "runtime/graph_report.h"
#include "runtime/outside.h"
#include "runtime/real_tensor.h"
#include "runtime/selection.h"
#include "runtime/watch.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

namespace torch_lazy {
namespace {

/// Marks the nodes as scheduled and holds their values. Needs the graph lock.
void start(Flight& flight) {
  Program& program = Program::instance();
  for (Value* value : flight.collection.values) {
    program.hold(value);
  }
  for (Node* node : flight.collection.nodes) {
    program.take_out(node);
    node->flight = &flight;
  }
}

std::shared_ptr<Plan> plan_for(Collection& collection, bool& cached) {
  PlanCache& plans = PlanCache::instance();
  if (std::shared_ptr<Plan> plan = plans.find(collection.signature)) {
    static metrics::Counter& hits = metrics::counter("CachedCompile");
    hits.add();
    return plan;
  }
  cached = false;
  static metrics::Counter& misses = metrics::counter("UncachedCompile");
  misses.add();
  fault_point(Stage::compile);
  auto plan = std::make_shared<Plan>();
  {
    GraphLock lock;
    plan->graph = std::make_shared<const Graph>(make_graph(collection));
  }
  {
    static metrics::Metric& time = metrics::metric("CompileTime", metrics::Kind::time);
    metrics::TimedSection timed(time);
    plan->executable = backend().compile(plan->graph);
  }
  plan->signature = std::move(collection.signature);
  plans.add(plan);
  return plan;
}

/// The collection of a request and, where the request is known, its plan. Under the graph lock.
struct Prepared {
  FlightPtr flight;
  KnownSync* known = nullptr;
  std::shared_ptr<Failure> failure;  // of a value that was asked for: raised after unlocking
};

Prepared prepare(const SyncRequest& request) {
  GraphLock lock;
  Program& program = Program::instance();
  Segment& segment = program.segment();
  Trace& trace = Trace::of_this_thread();
  Prepared prepared;
  const bool followed =
      segment.at && segment.trace == &trace && program.pending() > 0 && !inside_run();
  if (followed) {
    prepared.known = trace.find(segment, request);
  }
  auto flight = std::make_shared<Flight>();
  if (prepared.known) {
    flight->plan = prepared.known->plan.lock();
  }
  if (flight->plan && PlanCache::instance().touch(*flight->plan)) {
    static metrics::Counter& hits = metrics::counter("CachedCompile");
    hits.add();
    static metrics::Counter& reused = metrics::counter("SyncReused");
    reused.add();
    flight->collection = collection_of(*prepared.known, segment);
  } else {
    program.free_later(std::exchange(flight->plan, nullptr));
    prepared.failure = find_failure(request);
    std::vector<Node*> nodes;
    if (!prepared.failure) {
      nodes = select_nodes(request, inside_run());
    }
    if (nodes.empty()) {
      return prepared;
    }
    flight->collection = collect(std::move(nodes));
    if (followed && !prepared.known) {
      prepared.known = trace.add(segment, request, flight->collection);
    }
  }
  start(*flight);
  if (!followed) {
    segment.leave();  // a part was run that no trace knows of
  } else {
    segment.at = prepared.known->after.get();
    trace.move_to(program.pending() > 0 ? segment.at : trace.root());
  }
  prepared.flight = std::move(flight);
  return prepared;
}

/// What becomes of the graph of values that are read: it stays available for dumps and hashes.
void keep_history(const SyncRequest& request, const Flight& flight) {
  auto numbers = std::make_shared<const std::vector<c10::IValue>>(flight.collection.numbers);
  GraphLock lock;
  for (Value* value : request.values) {
    if (value->producer && value->producer->flight == &flight) {
      const auto& values = flight.collection.values;
      auto slot = std::find(values.begin(), values.end(), value) - values.begin();
      Program::instance().remember(value,
                                   {flight.plan->graph, static_cast<uint32_t>(slot), numbers});
    }
  }
}

/// For people who follow which graphs run.
void report(const SyncRequest& request, const Flight& flight, bool cached) {
  const ScheduledGraph scheduled{*flight.plan->graph, flight.collection.numbers,
                                 flight.collection.nodes, request.device.value_or(0), cached};
  log_graph(scheduled);
  if (saves_graph_reports()) {
    save_graph_report(scheduled);
  }
}

/// Everything that is pending; `see` looks at it before it is scheduled.
Prepared prepare_seen(const std::function<void(const Collection&)>& see) {
  GraphLock lock;
  SyncRequest everything;
  everything.everything = true;
  auto flight = std::make_shared<Flight>();
  flight->collection = collect(select_nodes(everything, /*inside_run=*/false));
  see(flight->collection);
  Prepared prepared;
  if (!flight->collection.nodes.empty()) {
    start(*flight);
    prepared.flight = std::move(flight);
  }
  Program::instance().segment().leave();
  return prepared;
}

/// Puts what was prepared into the queue; null: there was nothing to do.
FlightPtr schedule(const SyncRequest& request, Prepared prepared) {
  if (prepared.failure) {
    raise(*prepared.failure);
  }
  FlightPtr flight = std::move(prepared.flight);
  if (!flight) {
    return nullptr;
  }
  try {
    bool cached = true;
    if (!flight->plan) {
      flight->plan = plan_for(flight->collection, cached);
      if (prepared.known) {
        GraphLock lock;
        prepared.known->plan = flight->plan;
      }
    }
    if (cached) {
      PlanCache::instance().weigh(*flight->plan);
    }
    report(request, *flight, cached);
  } catch (...) {
    call_off(*flight);
    throw;
  }
  static metrics::Metric& size = metrics::metric("TensorsGraphSize");
  size.add(static_cast<double>(flight->collection.nodes.size()));
  if (request.everything) {
    static metrics::Counter& synced = metrics::counter("SyncedTensorsWithIR");
    synced.add(static_cast<int64_t>(flight->plan->graph->roots.size()));
  } else {
    keep_history(request, *flight);
  }
  flight->run.slots.resize(flight->collection.values.size());
  flight->run.numbers = std::move(flight->collection.numbers);
  enqueue(flight);
  return flight;
}

FlightPtr schedule(const SyncRequest& request) {
  SchedulingLock scheduling;
  return schedule(request, prepare(request));
}

/// Whether a value that was asked for needs something that failed.
bool needs_failed(c10::ArrayRef<Value*> values) {
  GraphLock lock;
  const uint64_t epoch = Program::instance().next_epoch();
  std::vector<const Value*> stack(values.begin(), values.end());
  while (!stack.empty()) {
    const Value* value = stack.back();
    stack.pop_back();
    if (value->failure) {
      return true;
    }
    if (value->pending() && value->producer->epoch != epoch) {
      value->producer->epoch = epoch;
      if (value->producer->failed) {
        return true;
      }
      stack.insert(stack.end(), value->producer->operands.begin(), value->producer->operands.end());
    }
  }
  return false;
}

/// Raises why the flight failed, unless another thread's call did that the request does not need.
void raise_failure(const Flight& flight, const SyncRequest& request) {
  if (!flight.failure || flight.failure->delivered) {
    return;
  }
  Failure& failure = *flight.failure;
  const bool needed =
      !request.everything && (is_passing(failure.original) || needs_failed(request.values));
  if (needed) {
    raise(failure);
  }
  if (is_own(failure)) {
    raise_elsewhere(failure, request.everything
                                 ? "everything that was recorded runs here"
                                 : "it reads memory that is overwritten for what is read here");
  }
}

/// Schedules; executes where execution is synchronous, or where the caller waits anyway.
void run(const SyncRequest& request, bool waits = false) {
  raise_undelivered(/*of_any_thread=*/false);
  while (FlightPtr flight = schedule(request)) {
    watch_obstacle("what it recorded runs before it has ended");
    if (is_asynchronous() && !waits) {
      return wait_while_far_ahead();
    }
    wait_for(flight);
    give_warnings(/*of_any_thread=*/request.everything);
    if (!flight->failure) {
      return;
    }
    raise_failure(*flight, request);  // if it returns, what comes after the failure still waits
  }
}

/// Values that stay while other threads go on recording.
class Held {
 public:
  Held() = default;
  explicit Held(c10::ArrayRef<Buffer*> buffers) {
    GraphLock lock(buffers);
    for (Buffer* buffer : buffers) {
      add(*buffer);
    }
  }

  /// Needs the graph lock.
  void add(Buffer& buffer) {
    Value* value = Program::instance().value_of(buffer);
    Program::instance().begin_reading(value);
    values.push_back(value);
  }

  ~Held() {
    GraphLock lock;
    for (Value* value : values) {
      Program::instance().end_reading(value, lock);
    }
  }

  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

  std::vector<Value*> values;
};

/// Returns when the value is not pending and not in flight.
void compute(Value* value) {
  while (true) {
    FlightPtr flight;  // null: pending
    std::shared_ptr<Failure> failure;
    {
      GraphLock lock;
      failure = value->failure;
      if (!failure && !value->producer) {
        return;
      }
      if (!failure && value->in_flight()) {
        flight = value->producer->flight->shared_from_this();
      }
    }
    if (failure) {
      raise(*failure);
    }
    SyncRequest request;
    request.values = {value};
    if (flight) {
      wait_for(flight);
      raise_failure(*flight, request);
      raise_undelivered(/*of_any_thread=*/false);
    } else {
      run(request, /*waits=*/true);
    }
  }
}

/// Memory that is read from outside the graph is left to its readers: the buffer gets a copy.
void leave_to_readers(Buffer& buffer) {
  c10::Storage read;
  {
    GraphLock lock;
    const Value* value = buffer.current;
    if (!value || !value->data || value->readers == 0) {
      return;
    }
    read = value->data;
  }
  outside::wait_for_writers(read);
  c10::Storage copy = copy_of(read);
  GraphLock lock;
  Program& program = Program::instance();
  Value* value = program.make_value(buffer.nbytes);
  program.assign(buffer, value, lock);
  program.set_data(value, std::move(copy));
}

}  // namespace

bool over_limit(const Program& program) {
  if (watch()) {
    return false;  // what is replayed is one graph
  }
  const Settings& s = settings();
  const auto pending = static_cast<int64_t>(program.pending());
  const int64_t most = s.max_nodes.load(std::memory_order_relaxed);
  const int64_t bytes = s.max_bytes_held.load(std::memory_order_relaxed);
  bool too_long = most && pending >= most;
  if (pending > s.trim_graph_size.load(std::memory_order_relaxed)) {
    const int64_t every = s.trim_graph_check_frequency.load(std::memory_order_relaxed);
    too_long |= every && pending % every == 0;
  }
  if (too_long) {
    static metrics::Counter& trimmed = metrics::counter("TrimIrGraph");
    trimmed.add();
  }
  return too_long || (bytes && program.bytes_held() >= bytes) ||
         s.check.load(std::memory_order_relaxed);
}

void run_all(std::optional<c10::DeviceIndex> device) {
  SyncRequest request;
  request.everything = true;
  request.device = device;
  run(request);
}

void finish_all() {
  wait_for_all();  // what comes after a failure there is pending again
  bool pending = false;
  {
    GraphLock lock;
    pending = Program::instance().pending() > 0;
  }
  if (pending) {
    SyncRequest request;
    request.everything = true;
    run(request, /*waits=*/true);
    wait_for_all();
  }
  raise_undelivered(/*of_any_thread=*/false);
}

std::shared_ptr<Plan> run_seen(const std::function<void(const Collection&)>& see) {
  FlightPtr flight;
  {
    SchedulingLock scheduling;
    SyncRequest everything;
    everything.everything = true;
    flight = schedule(everything, prepare_seen(see));
  }
  if (!flight) {
    return nullptr;
  }
  wait_for(flight);
  if (flight->failure) {
    SyncRequest everything;
    everything.everything = true;
    if (is_own(*flight->failure) && !flight->failure->delivered) {
      raise(*flight->failure);
    }
    run(everything, /*waits=*/true);  // what comes after another thread's failure
  }
  return flight->plan;
}

std::shared_ptr<Plan> plan_seen(const std::function<void(const Collection&)>& see) {
  SchedulingLock scheduling;
  FlightPtr flight = prepare_seen(see).flight;
  if (!flight) {
    return nullptr;
  }
  bool cached = true;
  std::shared_ptr<Plan> plan;
  try {
    plan = plan_for(flight->collection, cached);
  } catch (...) {
    call_off(*flight);
    throw;
  }
  call_off(*flight);
  auto failure = std::make_shared<Failure>();
  failure->message = "torch-lazy: this value belongs to a graph that was only planned";
  GraphLock lock;
  give_up(flight->collection.nodes, failure, lock);
  return plan;
}

void run_live(std::optional<c10::DeviceIndex> device,
              const std::function<bool(const Buffer&)>& wanted) {
  Held held;
  {
    GraphLock lock;
    for (Buffer* buffer : Program::instance().live_buffers(device)) {
      if (buffer->current && buffer->current->pending() && wanted(*buffer)) {
        held.add(*buffer);
      }
    }
  }
  SyncRequest request;
  request.values = held.values;
  run(request);
}

void run_buffers(c10::ArrayRef<Buffer*> buffers, bool to_write) {
  {
    Held held(buffers);
    SyncRequest request;
    request.values = held.values;
    request.to_write = to_write;
    run(request);
    if (!to_write) {
      return;
    }
    wait_for_all();
    raise_undelivered(/*of_any_thread=*/false);
  }
  for (Buffer* buffer : buffers) {
    leave_to_readers(*buffer);
    GraphLock lock;
    if (buffer->current) {  // the caller writes before anything else runs
      Program::instance().forget_beside(buffer->current);
    }
  }
}

void wait_for_buffers(c10::ArrayRef<Buffer*> buffers) {
  Held held(buffers);
  for (Value* value : held.values) {
    compute(value);
  }
}

c10::Storage allocate(int64_t nbytes) {
  fault_point(Stage::allocate);
  return at::empty({nbytes}, at::TensorOptions().dtype(at::kByte).device(real_device())).storage();
}

Reading::Reading(Buffer& buffer) {
  {
    GraphLock lock(buffer);
    value_ = Program::instance().value_of(buffer);
    Program::instance().begin_reading(value_);
  }
  try {
    obtain();
  } catch (...) {
    GraphLock lock;
    Program::instance().end_reading(value_, lock);
    throw;
  }
}

void Reading::obtain() {
  compute(value_);
  {
    GraphLock lock;
    storage_ = value_->data;
  }
  while (storage_ && storage_.device_type() != real_device().type()) {
    c10::Storage other = to_real_memory(storage_);  // not under the lock: it may take long
    c10::Storage own = storage_;
    GraphLock lock;
    if (value_->data.is_alias_of(own)) {
      std::swap(value_->data, other);
    }
    storage_ = value_->data;
  }
  if (storage_) {
    outside::wait_for_writers(storage_);
    return;
  }
  c10::Storage fresh = allocate(value_->nbytes);
  GraphLock lock;
  if (!value_->data) {
    Program::instance().set_data(value_, std::move(fresh));
    if (value_->segment == Program::instance().segment().id) {
      Program::instance().segment().leave();  // a trace may know it as undefined
    }
  }
  storage_ = value_->data;
}

Reading::~Reading() {
  GraphLock lock;
  Program::instance().end_reading(value_, lock);
}

c10::Storage materialize(Buffer& buffer, bool to_write) {
  if (to_write) {
    Buffer* written[] = {&buffer};
    run_buffers(written, /*to_write=*/true);
  }
  c10::Storage storage = Reading(buffer).storage();
  if (GraphLock lock; to_write && buffer.current) {
    Program::instance().expose(buffer.current);
  }
  return storage;
}

void wait_for_device() {
  wait_for_all();
  {
    ExecutionLock execution;
    backend().wait();
  }
  raise_undelivered(/*of_any_thread=*/true);
}

void cut() {
  run_all();
  bool still_over = false;
  {
    GraphLock lock;
    still_over = over_limit(Program::instance());
  }
  if (still_over) {
    wait_for_all();  // what is in flight keeps memory alive
  }
}

void discard_pending() {
  wait_for_all();
  GraphLock lock;
  Program& program = Program::instance();
  program.segment().leave();
  auto failure = std::make_shared<Failure>();
  failure->message = "torch-lazy: this value was discarded before it was computed";
  while (Node* node = program.first()) {
    give_up(node, failure, lock);
  }
}

}  // namespace torch_lazy
