// Recording a call.
#include "capture/tensor.h"
#include "replay/history_watch.h"
#include "replay/recording.h"
#include "runtime/executor.h"
#include "runtime/queue.h"
#include "runtime/real_tensor.h"

#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cstring>
#include <unordered_map>
#include <unordered_set>

namespace torch_lazy {
namespace {

/// Bytes from the beginning of its storage to the end of a tensor.
int64_t bytes_reached(const at::Tensor& tensor) {
  if (tensor.numel() == 0) {
    return 0;
  }
  int64_t last = tensor.storage_offset();
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    last += (tensor.size(i) - 1) * tensor.stride(i);
  }
  return (last + 1) * static_cast<int64_t>(tensor.element_size());
}

/// Which host tensors are the same one, and which share memory.
void find_same(const std::vector<at::Tensor>& tensors, std::vector<HostTensor>& hosts) {
  for (uint32_t i = 0; i < hosts.size(); ++i) {
    auto first = [&](auto is_same) {
      return static_cast<uint32_t>(std::find_if(tensors.begin(), tensors.begin() + i, is_same) -
                                   tensors.begin());
    };
    hosts[i].same = first([&](const at::Tensor& t) { return t.is_same(tensors[i]); });
    hosts[i].storage = first([&](const at::Tensor& t) { return share_storage(t, tensors[i]); });
  }
}

/// Data that is the same in every call, or that an argument has.
HostData host_data(const Upload& upload, const std::vector<at::Tensor>& hosts,
                   std::vector<HostTensor>& recorded) {
  HostData data;
  data.layout = upload.layout;
  data.nbytes = upload.nbytes;
  for (size_t i = 0; i < hosts.size(); ++i) {
    if (share_storage(upload.source, hosts[i])) {
      data.argument = static_cast<int>(i);
      data.source = Layout::of(upload.source);
      recorded[i].nbytes = std::max(recorded[i].nbytes, bytes_reached(upload.source));
      return data;
    }
  }
  data.constant = allocate(upload.nbytes);
  BelowEverything below;
  real_tensor(data.constant, data.layout).copy_(upload.source);
  return data;
}

std::string at_line(const std::string& line) {
  return line.empty() ? "" : " (" + line + ")";
}

/// What is there after the call, under the graph lock.
class Findings {
 public:
  Findings(Recording& recording, const Collection& collection, const Watch& watch,
           const std::vector<Buffer*>& buffers, const std::vector<Value*>& entry)
      : recording_(recording), collection_(collection) {
    for (uint32_t i = 0; i < watch.drawn().size(); ++i) {
      origin_[watch.drawn()[i]] = {Content::Kind::draw, i};
    }
    for (uint32_t i = 0; i < watch.uploaded().size(); ++i) {
      origin_[watch.uploaded()[i]] = {Content::Kind::upload, i};
    }
    for (uint32_t i = 0; i < buffers.size(); ++i) {
      origin_[entry[i]] = {Content::Kind::entry, i};
      known_[buffers[i]] = i;
    }
  }

  void program() {
    const Collection& c = collection_;
    recording_.signature = c.signature;
    recording_.numbers = c.numbers;
    for (size_t i = 0; i < c.parameters.size(); ++i) {
      const Value* value = c.values[c.parameters[i]];
      auto found = origin_.find(value);
      Content content{Content::Kind::undefined, 0};
      if (found != origin_.end()) {
        content = found->second;
      } else if (!c.fresh[i]) {
        obstacle("it reads a tensor that is no argument of it and held by nothing it refers to" +
                 at_line(first_reader(value)));
      }
      recording_.parameters.push_back(content);
    }
    std::unordered_map<uint64_t, uint32_t> by_id;
    for (const auto& [buffer, index] : known_) {
      by_id[buffer->id] = index;
    }
    recording_.versions.resize(known_.size());
    for (uint32_t i = 0; i < c.nodes.size(); ++i) {
      const Node& node = *c.nodes[i];
      if (node.parked) {
        obstacle("it needs operations of before that are still waiting");
        recording_.untimely = true;
      }
      recording_.lines.push_back(node.source);
      for (size_t k = node.description->fresh.size(); k < node.outputs.size(); ++k) {
        const Value* output = node.outputs[k];
        auto known = output ? by_id.find(output->origin) : by_id.end();
        if (known != by_id.end()) {
          recording_.versions[known->second].push_back({i, output->slot});
        }
      }
    }
  }

  Content content_of(const Buffer& buffer) {
    const Value* value = buffer.current;
    auto found = origin_.find(value);
    if (found != origin_.end()) {
      return found->second;
    }
    if (!value || value->undefined()) {
      return {Content::Kind::undefined, 0};
    }
    if (value->slot < collection_.values.size() && collection_.values[value->slot] == value) {
      return {Content::Kind::slot, value->slot};
    }
    obstacle("a tensor has content that the call did not record");
    return {Content::Kind::undefined, 0};
  }

  BufferPlace place_of(Buffer& buffer) {
    auto known = known_.find(&buffer);
    if (known != known_.end()) {
      return {true, known->second};
    }
    auto [made, fresh] = made_.try_emplace(&buffer, recording_.made.size());
    if (fresh) {
      recording_.made.push_back({content_of(buffer), buffer.nbytes, buffer.device});
    }
    return {false, made->second};
  }

  MadeTensor made_tensor(const at::Tensor& tensor, const std::vector<at::Tensor>& known) {
    MadeTensor made;
    auto same = std::find_if(known.begin(), known.end(),
                             [&](const at::Tensor& t) { return t.is_same(tensor); });
    if (same != known.end()) {
      made.known = static_cast<int>(same - known.begin());
      return made;
    }
    made.buffer = place_of(buffer_of(tensor));
    made.layout = Layout::of(tensor);
    made.requires_grad = tensor.requires_grad();
    made.inference = tensor.is_inference();
    return made;
  }

  /// Tensors that the call made and that something holds besides its results and gradients.
  void check_escaped(uint64_t last_before) {
    for (Buffer* buffer : Program::instance().live_buffers(std::nullopt)) {
      if (buffer->id > last_before && !made_.count(buffer) && !known_.count(buffer)) {
        const Node* producer = buffer->current ? buffer->current->producer : nullptr;
        return obstacle(
            "a tensor of it is kept somewhere else than in its results" +
            (producer ? ": that of " + producer->description->op->name + at_line(producer->source)
                      : std::string()));
      }
    }
  }

  void obstacle(const std::string& what) {
    if (recording_.obstacle.empty()) {
      recording_.obstacle = what;
    }
  }

 private:
  std::string first_reader(const Value* value) const {
    for (const Node* node : collection_.nodes) {
      if (std::find(node->operands.begin(), node->operands.end(), value) != node->operands.end()) {
        return node->source;
      }
    }
    return "";
  }

  Recording& recording_;
  const Collection& collection_;
  std::unordered_map<const Value*, Content> origin_;
  std::unordered_map<const Buffer*, uint32_t> known_;
  std::unordered_map<const Buffer*, uint32_t> made_;
};

const torch::autograd::AutogradMeta* autograd_of(const at::Tensor& tensor) {
  return torch::autograd::impl::get_autograd_meta(tensor);
}

/// Whether writing to one tensor counts as a write to the other.
bool share_versions(const at::Tensor& a, const at::Tensor& b) {
  const c10::VariableVersion& x = a.unsafeGetTensorImpl()->version_counter();
  const c10::VariableVersion& y = b.unsafeGetTensorImpl()->version_counter();
  static_assert(sizeof(c10::VariableVersion) == sizeof(void*), "it is one pointer to the count");
  return x.enabled() && std::memcmp(static_cast<const void*>(&x), &y, sizeof(x)) == 0;
}

/// Notes what a result has in common with another tensor that there is after the call. Whether it
/// has anything.
bool relate(MadeTensor& made, const at::Tensor& result, const at::Tensor& other, size_t place) {
  if (!share_versions(result, other)) {
    return false;
  }
  made.related = static_cast<int>(place);
  const auto* view = torch::autograd::impl::get_view_autograd_meta(result);
  const bool as_strided = result.scalar_type() == other.scalar_type() &&
                          result.is_conj() == other.is_conj() && result.is_neg() == other.is_neg();
  if (view && view->has_bw_view() && as_strided) {
    const auto* base = torch::autograd::impl::get_view_autograd_meta(other);
    const at::Tensor& of = view->get_backward_view().base_;
    made.view = of.is_same(other) ||
                (base && base->has_bw_view() && of.is_same(base->get_backward_view().base_));
    made.view_with_grad = view->get_creation_meta() != torch::autograd::CreationMeta::NO_GRAD_MODE;
  }
  return true;
}

KnownTensor describe(const at::Tensor& tensor) {
  KnownTensor known;
  known.layout = Layout::of(tensor);
  known.device = tensor.device().index();
  known.requires_grad = tensor.requires_grad();
  known.leaf = tensor.is_leaf();
  const auto* autograd = autograd_of(tensor);
  known.hooks = autograd && has_hooks(*autograd);
  return known;
}

/// Whether the new gradients are in one new buffer, which has nothing else, and lie in it as the
/// old ones do in theirs.
bool take_the_same_places(const Recording& r, const ReplacedGradients& replaced) {
  const MadeTensor& first = r.gradients[replaced.gradients[0]].tensor;
  for (uint32_t i : replaced.gradients) {
    const NewGradient& gradient = r.gradients[i];
    const MadeTensor& made = gradient.tensor;
    if (gradient.none || made.known >= 0 || made.buffer.known ||
        made.buffer.index != first.buffer.index ||
        !(made.layout == r.known[r.known[gradient.of].grad].layout)) {
      return false;
    }
  }
  const MadeBuffer& buffer = r.made[first.buffer.index];
  const auto in_it =
      std::count_if(r.gradients.begin(), r.gradients.end(), [&](const NewGradient& gradient) {
        return !gradient.none && gradient.tensor.known < 0 &&
               gradient.tensor.buffer == first.buffer;
      });
  return buffer.content.kind == Content::Kind::slot && buffer.nbytes == r.nbytes[replaced.buffer] &&
         in_it == static_cast<ptrdiff_t>(replaced.gradients.size());
}

/// Whether a gradient that was there before is a result, or in another place afterwards.
bool refers_to_old_gradients(const Recording& r) {
  auto is_old = [&](const MadeTensor& tensor) {
    if (tensor.known >= 0) {
      return static_cast<uint32_t>(tensor.known) >= r.given;
    }
    if (!tensor.buffer.known) {
      return false;
    }
    auto first = std::find_if(r.known.begin(), r.known.end(), [&](const KnownTensor& known) {
      return known.buffer == tensor.buffer.index;
    });
    return first - r.known.begin() >= static_cast<ptrdiff_t>(r.given);
  };
  return std::any_of(r.results.begin(), r.results.end(), is_old) ||
         std::any_of(r.gradients.begin(), r.gradients.end(), [&](const NewGradient& gradient) {
           return !gradient.none && is_old(gradient.tensor);
         });
}

std::vector<ReplacedGradients> replaced_gradients(const Recording& r) {
  std::vector<ReplacedGradients> all;
  std::unordered_map<uint32_t, size_t> by_buffer;
  for (uint32_t i = 0; i < r.gradients.size(); ++i) {
    const int before = r.known[r.gradients[i].of].grad;
    if (before < 0) {
      continue;
    }
    const uint32_t buffer = r.known[before].buffer;
    auto [found, fresh] = by_buffer.try_emplace(buffer, all.size());
    if (fresh) {
      all.push_back({buffer, {}, {}, -1});
    }
    all[found->second].gradients.push_back(i);
    all[found->second].old.push_back(static_cast<uint32_t>(before));
  }
  for (ReplacedGradients& replaced : all) {
    if (take_the_same_places(r, replaced)) {
      replaced.made = static_cast<int>(r.gradients[replaced.gradients[0]].tensor.buffer.index);
    }
  }
  return all;
}

}  // namespace

Recorder::Recorder(std::vector<at::Tensor> known, std::vector<at::Tensor> hosts,
                   std::vector<uint32_t> donated)
    : known_(std::move(known)), hosts_(std::move(hosts)), donated_(std::move(donated)) {
  Recording& r = recording_;
  if (inside_run()) {
    r.obstacle = "it is called by an operator that is being executed";
    r.untimely = true;
    return;
  }
  run_all();
  r.given = static_cast<uint32_t>(known_.size());
  for (const at::Tensor& tensor : known_) {
    r.known.push_back(describe(tensor));
    const auto* autograd = autograd_of(tensor);
    if (autograd && has_tangent(*autograd)) {
      r.obstacle = "a tensor has a tangent of forward-mode differentiation";
    }
  }
  for (uint32_t i = 0; i < r.given; ++i) {
    const at::Tensor& grad = r.known[i].leaf ? known_[i].grad() : at::Tensor();
    if (!grad.defined()) {
      continue;
    }
    if (!is_lazy(grad)) {
      r.obstacle = "a gradient is not on the device lazy";
      return;
    }
    r.known[i].grad = static_cast<int>(known_.size());
    r.known.push_back(describe(grad));
    known_.push_back(grad);
  }
  for (const at::Tensor& host : hosts_) {
    r.hosts.push_back(HostTensor::of(host));
  }
  find_same(hosts_, r.hosts);
  std::vector<Buffer*> all;
  for (const at::Tensor& tensor : known_) {
    all.push_back(&buffer_of(tensor));
  }
  std::vector<at::Tensor> all_tensors = known_;
  all_tensors.insert(all_tensors.end(), hosts_.begin(), hosts_.end());
  // Not under the lock: they ask PyTorch.
  auto histories = std::make_unique<HistoryWatch>(all_tensors);
  auto watch = std::make_unique<Watch>();
  GraphLock lock(all);
  Program& program = Program::instance();
  const bool waiting = std::any_of(known_.begin(), known_.end(), [](const at::Tensor& tensor) {
    const Value* value = buffer_of(tensor).current;
    return value && value->pending();
  });
  if (program.pending() > 0 || waiting) {
    r.obstacle = "operations of before are still waiting";  // there was no memory for them
    r.untimely = true;
    return;
  }
  for (uint32_t i = 0; i < known_.size(); ++i) {
    Buffer* buffer = all[i];
    auto seen = std::find(buffers_.begin(), buffers_.end(), buffer);
    r.known[i].buffer = static_cast<uint32_t>(seen - buffers_.begin());
    if (seen == buffers_.end()) {
      Value* value = program.value_of(*buffer);
      program.hold(value);
      buffers_.push_back(buffer);
      entry_.push_back(value);
      r.undefined.push_back(value->undefined());
      r.nbytes.push_back(buffer->nbytes);
    }
  }
  find_pairs();
  last_buffer_ = last_buffer_id();
  watch_ = std::move(watch);
  histories_ = std::move(histories);
  if (!watch_->active()) {
    r.obstacle = "another call is being recorded";
    r.untimely = true;
  }
}

/// Known tensors that lie in one buffer in the same way: the same one, or not.
void Recorder::find_pairs() {
  Recording& r = recording_;
  std::unordered_map<uint32_t, std::vector<uint32_t>> in_buffer;
  for (uint32_t i = 0; i < known_.size(); ++i) {
    std::vector<uint32_t>& others = in_buffer[r.known[i].buffer];
    auto same = std::find_if(others.begin(), others.end(),
                             [&](uint32_t k) { return known_[i].is_same(known_[k]); });
    if (same != others.end()) {
      r.same.emplace_back(*same, i);
      continue;
    }
    for (uint32_t k : others) {
      if (r.known[i].layout == r.known[k].layout) {
        r.distinct.emplace_back(k, i);
      }
    }
    others.push_back(i);
  }
}

Recorder::~Recorder() {
  abandon();
}

void Recorder::abandon() {
  watch_.reset();
  histories_.reset();
  GraphLock lock;
  for (Value* value : entry_) {
    Program::instance().let_go(value, lock);
  }
  entry_.clear();
}

std::vector<uint32_t> Recorder::give_up_donated(const std::vector<at::Tensor>& results) {
  const std::vector<KnownTensor>& known = recording_.known;
  std::vector<char> kept(buffers_.size(), 0);
  for (uint32_t i = 0; i < known.size(); ++i) {
    kept[known[i].buffer] |= std::find(donated_.begin(), donated_.end(), i) == donated_.end();
  }
  std::vector<uint32_t> given_up;
  GraphLock lock;
  for (uint32_t b = 0; b < buffers_.size(); ++b) {
    const bool returned =
        std::any_of(results.begin(), results.end(),
                    [&](const at::Tensor& result) { return &buffer_of(result) == buffers_[b]; });
    if (!kept[b] && !returned && buffers_[b]->current == entry_[b] && !entry_[b]->undefined()) {
      lose_donated(*buffers_[b], lock);
      given_up.push_back(b);
    }
  }
  return given_up;
}

bool Recorder::leaves_others(const std::vector<at::Tensor>& results) const {
  if (!watch_ || !watch_->active()) {
    return false;
  }
  std::unordered_set<const Buffer*> expected(buffers_.begin(), buffers_.end());
  for (const at::Tensor& result : results) {
    expected.insert(&buffer_of(result));
  }
  for (uint32_t i = 0; i < recording_.given; ++i) {
    const at::Tensor& grad = recording_.known[i].leaf ? known_[i].grad() : at::Tensor();
    if (grad.defined() && is_lazy(grad)) {
      expected.insert(&buffer_of(grad));
    }
  }
  GraphLock lock;
  const std::vector<Buffer*> live = Program::instance().live_buffers(std::nullopt);
  return std::any_of(live.begin(), live.end(), [&](const Buffer* buffer) {
    return buffer->id > last_buffer_ && !expected.count(buffer);
  });
}

Recording Recorder::finish(const std::vector<at::Tensor>& results,
                           const std::vector<ResultGraph>& graphs) {
  return finish(results, graphs, /*run=*/true);
}

Recording Recorder::plan(const std::vector<at::Tensor>& results) {
  return finish(results, std::vector<ResultGraph>(results.size()), /*run=*/false);
}

Recording Recorder::finish(const std::vector<at::Tensor>& results,
                           const std::vector<ResultGraph>& graphs, bool run) {
  Recording& r = recording_;
  if (!watch_ || !watch_->active()) {
    run_all();
    return std::move(r);
  }
  watch_->begin_draw();
  const std::string graph_obstacle = histories_->obstacle();
  r.backward = histories_->went_backward();
  histories_.reset();
  r.draws = watch_->draws();
  for (const Upload& upload : watch_->uploads()) {
    r.uploads.push_back(host_data(upload, hosts_, r.hosts));
  }
  const std::vector<uint32_t> donated = give_up_donated(results);
  auto see = [&](const Collection& collection) {
    Findings findings(r, collection, *watch_, buffers_, entry_);
    findings.program();
    for (uint32_t i = 0; i < known_.size(); ++i) {
      KnownTensor now = describe(known_[i]);
      now.grad = r.known[i].grad;
      now.buffer = r.known[i].buffer;
      if (!(now == r.known[i]) || &buffer_of(known_[i]) != buffers_[now.buffer]) {
        const bool other_flag = now.requires_grad != r.known[i].requires_grad;
        findings.obstacle(std::string("a tensor that was there before got ") +
                          (other_flag ? "another requires_grad" : "another shape or other memory") +
                          " (" + now.layout.shape_text() + "); do that outside of the function");
      }
    }
    for (uint32_t i = 0; i < r.given; ++i) {
      const at::Tensor& grad = r.known[i].leaf ? known_[i].grad() : at::Tensor();
      const int before = r.known[i].grad;
      if (before >= 0 ? grad.defined() && grad.is_same(known_[before]) : !grad.defined()) {
        continue;
      }
      NewGradient gradient{i, !grad.defined(), {}};
      if (grad.defined()) {
        if (!is_lazy(grad) || grad.requires_grad()) {
          findings.obstacle("a gradient has a graph of its own, or is not on the device lazy");
          continue;
        }
        gradient.tensor = findings.made_tensor(grad, known_);
        for (const NewGradient& before : r.gradients) {
          if (!before.none && known_[before.of].grad().is_same(grad)) {
            gradient.tensor.gradient_of = static_cast<int>(before.of);
            break;
          }
        }
      }
      r.gradients.push_back(std::move(gradient));
    }
    for (size_t i = 0; i < results.size(); ++i) {
      MadeTensor result = findings.made_tensor(results[i], known_);
      if (result.known < 0 && graphs[i] != ResultGraph::none) {
        result.consumed = graphs[i] == ResultGraph::used_up;
        if (!result.consumed) {
          findings.obstacle(
              "a result has an autograd graph that backward may still need; call it under "
              "torch.no_grad() or return result.detach()");
        }
      }
      for (size_t k = 0; k < i && result.same < 0; ++k) {
        result.same = results[i].is_same(results[k]) ? static_cast<int>(k) : -1;
      }
      for (const NewGradient& gradient : r.gradients) {
        if (!gradient.none && results[i].is_same(known_[gradient.of].grad())) {
          result.gradient_of = static_cast<int>(gradient.of);
        }
      }
      if (result.known < 0 && result.same < 0 && result.gradient_of < 0) {
        bool found = false;
        for (size_t k = 0; k < known_.size() && !found; ++k) {
          found = relate(result, results[i], known_[k], k);
        }
        for (size_t k = 0; k < i && !found; ++k) {
          found = relate(result, results[i], results[k], known_.size() + k);
        }
      }
      r.results.push_back(std::move(result));
    }
    r.keeps_old_gradients = refers_to_old_gradients(r);
    for (uint32_t b = 0; b < buffers_.size(); ++b) {
      const bool given_up = std::find(donated.begin(), donated.end(), b) != donated.end();
      r.after.push_back(given_up                            ? Content{Content::Kind::donated, b}
                        : buffers_[b]->current == entry_[b] ? Content{Content::Kind::entry, b}
                                                            : findings.content_of(*buffers_[b]));
    }
    if (!graph_obstacle.empty()) {
      findings.obstacle(graph_obstacle);
    }
    findings.check_escaped(last_buffer_);
    const std::string seen = watch_->obstacle();
    if (!seen.empty()) {
      r.obstacle = seen;  // what the rest follows from
      r.untimely = watch_->is_disturbed();
    }
  };
  r.plan = run ? run_seen(see) : plan_seen(see);
  r.replaced = replaced_gradients(r);
  for (uint32_t i = 0; i < r.known.size(); ++i) {
    if (r.after[r.known[i].buffer].kind != Content::Kind::entry) {
      r.written.push_back(i);
    }
  }
  watch_.reset();
  return std::move(r);
}

}  // namespace torch_lazy
