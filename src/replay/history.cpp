#include "replay/history.h"

#include "base/metrics.h"

#include <algorithm>

namespace torch_lazy {
namespace {

constexpr int kAttempts = 5;     // calls within which two in a row have to be alike
constexpr size_t kVariants = 8;  // trusted calls of one kind
constexpr int kUntimely = 64;    // calls that could not be recorded, as other threads were at work

/// Whether a call since it is trusted, counted from 1, is recorded and compared once more.
bool is_check(uint64_t call) {
  return call >= 8 && (call & (call - 1)) == 0;
}

/// The replays between two checks.
uint64_t replayed_before(uint64_t check) {
  return check == 8 ? 7 : check / 2 - 1;
}

std::string difference_of(const RecordedCall& before, NumberRules& rules,
                          const RecordedCall& call) {
  std::string reason = call.difference(before);
  if (reason.empty()) {
    reason = difference(*before.recording, *call.recording);
  }
  if (reason.empty()) {
    reason = rules.compare(*before.recording, *call.recording, call.sources);
    reason += reason.empty() ? "" : call.advice_about_numbers();
  }
  return reason;
}

}  // namespace

void CallHistory::release_gone() {
  const std::vector<TrustedCallPtr> candidates = trusted_;  // comparing objects may run any code
  for (const TrustedCallPtr& trusted : candidates) {
    if (trusted->call->fit() == RecordedCall::Fit::never) {
      changed_ = trusted->call->why_unfit();
      std::erase(trusted_, trusted);
    }
  }
  const RecordedCallPtr last = last_;
  if (last && last->fit() == RecordedCall::Fit::never) {
    gone_ = last->what_is_gone();
    last_.reset();
  }
}

void CallHistory::decide(const AddArguments& add_arguments, Decision& decision) {
  const std::vector<TrustedCallPtr> candidates = trusted_;  // comparing objects may run any code
  for (const TrustedCallPtr& trusted : candidates) {
    RecordedCall& call = *trusted->call;
    const RecordedCall::Fit fit = call.fit();
    if (fit == RecordedCall::Fit::never) {
      std::erase(trusted_, trusted);
    }
    if (fit != RecordedCall::Fit::fits) {
      continue;
    }
    if (!ready_to_replay()) {
      return;
    }
    // Before it matches: who waits for the lock lets other threads free tensors.
    decision.execution.emplace();
    // Out of the trusted call: while kernels run, another thread may call the function.
    decision.tensors = std::exchange(trusted->tensors, {});
    decision.tensors.clear();
    decision.tensors.known.reserve(call.recording->known.size());
    const bool is_alike = add_arguments(call, decision.tensors);
    call.add_tensors(decision.tensors);
    if (!is_alike || !matches(*call.recording, decision.tensors)) {
      decision.execution.reset();
      continue;
    }
    decision.trusted = trusted;
    decision.kind = Decision::Kind::record;
    if (!trusted->rules.numbers(*call.recording, call.sources.inputs, call.inputs(),
                                decision.numbers)) {
      decision.purpose = Purpose::settle;
    } else if (is_check(++trusted->calls)) {
      decision.purpose = Purpose::check;
    } else {
      decision.kind = Decision::Kind::replay;
      auto place = std::find(trusted_.begin(), trusted_.end(), trusted);
      if (place != trusted_.end()) {
        std::rotate(trusted_.begin(), place, place + 1);
      }
      return;
    }
    break;
  }
  decision.execution.reset();
  if (!decision.trusted && given_up_) {
    return;
  }
  if (!decision.trusted && !candidates.empty()) {
    changed_ = candidates.front()->call->why_unfit();
  }
  decision.kind = Decision::Kind::record;
  static metrics::Counter& recorded = metrics::counter("ReplayRecorded");
  recorded.add();
}

std::string CallHistory::judge(const RecordedCallPtr& call, Purpose purpose,
                               const TrustedCallPtr& trusted) {
  ++recorded_;
  reason_ = call->obstacle;
  if (call->recording->untimely) {  // that says nothing about the function
    if (++untimely_ < kUntimely) {
      return "";
    }
    give_up(reason_);
    return reason_;
  }
  if (purpose == Purpose::learn) {
    return learn(call);
  }
  if (reason_.empty()) {
    reason_ = difference_of(*trusted->call, trusted->rules, *call);
  }
  if (reason_.empty()) {
    return "";
  }
  if (purpose == Purpose::settle) {
    std::erase(trusted_, trusted);
    return learn(call);
  }
  const std::vector<TrustedCallPtr> dropped = std::exchange(trusted_, {});
  give_up(reason_ + ". The " + std::to_string(replayed_before(trusted->calls)) +
          " calls before were replayed as recorded");
  return reason_;
}

std::string CallHistory::learn(const RecordedCallPtr& call) {
  ++attempts_;
  reason_ = call->obstacle;
  const RecordedCallPtr last = std::exchange(last_, reason_.empty() ? call : nullptr);
  const std::string gone = std::exchange(gone_, "");
  if (reason_.empty() && last) {
    NumberRules rules(*last->recording, last->sources);
    reason_ = difference_of(*last, rules, *call);
    if (reason_.empty()) {
      trusted_.insert(trusted_.begin(),
                      std::make_shared<TrustedCall>(TrustedCall{call, std::move(rules), 0, {}}));
      attempts_ = 0;
      const RecordedCallPtr dropped = std::exchange(last_, nullptr);
      if (trusted_.size() > kVariants) {
        const TrustedCallPtr oldest = std::move(trusted_.back());  // freed last: that may run code
        trusted_.pop_back();
      }
      return "";
    }
  }
  if (reason_.empty()) {
    reason_ = gone.empty() ? "no two calls in a row were alike" : gone + " between calls";
  }
  if (attempts_ < kAttempts) {
    return "";
  }
  give_up(reason_);
  return reason_;
}

void CallHistory::give_up(std::string reason) {
  given_up_ = true;
  reason_ = std::move(reason);
  const RecordedCallPtr dropped = std::exchange(last_, nullptr);
}

}  // namespace torch_lazy
