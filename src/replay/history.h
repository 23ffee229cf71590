// Which calls of a function are recorded and which are replayed: one policy for functions of Python
// and of C++. Two calls in a row with equal recordings are trusted; calls 8, 16, 32, ... are
// recorded and compared again.
#pragma once

#include "replay/number_rules.h"
#include "replay/recording.h"
#include "runtime/queue.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace torch_lazy {

/// One recorded call, with what the language of its function knows of it.
class RecordedCall {
 public:
  enum class Fit {
    fits,
    other,  // something has another value, and may get this one again
    never,  // something that it depends on is gone
  };

  std::shared_ptr<Recording> recording;
  NumberSources sources;
  std::string obstacle;  // why it cannot be replayed; empty: it can

  RecordedCall() = default;
  RecordedCall(const RecordedCall&) = delete;
  RecordedCall& operator=(const RecordedCall&) = delete;
  virtual ~RecordedCall() = default;

  /// In what it differs from a call before, recordings aside; empty: in nothing.
  virtual std::string difference(const RecordedCall& /*before*/) const { return ""; }

  /// What a user can do about a number that is another one in each call.
  virtual std::string advice_about_numbers() const = 0;

  /// Whether what it depends on besides tensors is as it was.
  virtual Fit fit() { return Fit::fits; }

  /// What has changed so that it did not fit the last time.
  virtual std::string why_unfit() const { return "its tensors"; }

  /// What is gone of it, after a `fit` that says so.
  virtual std::string what_is_gone() const { return why_unfit() + " is replaced"; }

  /// The inputs of its formulas at present, after `fit`.
  virtual const std::vector<double>& inputs() const = 0;

  /// Adds the tensors that it knows to those of the call's arguments.
  virtual void add_tensors(ReplayTensors& /*tensors*/) const {}
};

using RecordedCallPtr = std::shared_ptr<RecordedCall>;

/// A call that can be replayed.
struct TrustedCall {
  RecordedCallPtr call;
  NumberRules rules;
  uint64_t calls = 0;     // since it is trusted
  ReplayTensors tensors;  // of its last replay, while there is none
};

using TrustedCallPtr = std::shared_ptr<TrustedCall>;

/// Why a call is recorded.
enum class Purpose {
  learn,
  settle,  // it shows what its numbers follow
  check,
};

/// What is to be done with a call.
struct Decision {
  enum class Kind {
    replay,
    record,
    call,  // the function is called as it is
  };
  Kind kind = Kind::call;
  Purpose purpose = Purpose::learn;
  TrustedCallPtr trusted;                  // what is replayed, or compared with
  ReplayTensors tensors;                   // of a replay: they match
  std::vector<c10::IValue> numbers;        // of a replay
  std::optional<ExecutionLock> execution;  // of a replay: held until it has run
};

/// What is known of the calls of one kind: those of a function with one signature.
class TORCH_LAZY_API CallHistory {
 public:
  /// Adds the tensors among the arguments. False: the call is not one that was recorded so.
  using AddArguments = std::function<bool(const RecordedCall&, ReplayTensors&)>;

  /// Fills in a new decision.
  void decide(const AddArguments& add_arguments, Decision& decision);

  /// Judges a call that was recorded for a purpose. Why the function is given up, which is to be
  /// said; empty: it is not.
  std::string judge(const RecordedCallPtr& call, Purpose purpose, const TrustedCallPtr& trusted);

  /// Lets go of recorded calls of which something is gone: they would keep objects alive that the
  /// program has dropped, which weak references tell.
  void release_gone();

  /// From now on the function is called each time.
  void give_up(std::string reason);

  /// The calls that can be replayed, the latest first: for training and evaluation, with and
  /// without gradients.
  const std::vector<TrustedCallPtr>& trusted() const { return trusted_; }

  /// Calls that were recorded.
  uint64_t recorded() const { return recorded_; }

  /// Why the last recorded call was not trusted; empty: it was.
  const std::string& reason() const { return reason_; }

  bool given_up() const { return given_up_; }

  /// What the last call that was recorded differed in from one that is trusted; empty: there was
  /// none.
  const std::string& changed() const { return changed_; }

 private:
  std::string learn(const RecordedCallPtr& call);

  std::vector<TrustedCallPtr> trusted_;
  RecordedCallPtr last_;  // that may be trusted if the next one is equal
  std::string gone_;      // what of it is gone; empty: nothing
  std::string reason_;
  std::string changed_;
  uint64_t recorded_ = 0;
  int attempts_ = 0;  // calls recorded since one was trusted
  int untimely_ = 0;
  bool given_up_ = false;
};

}  // namespace torch_lazy
