// c10d's works over real tensors, seen from lazy ones.
#include "capture/collectives.h"

#include "capture/nested.h"
#include "capture/tensor.h"
#include "runtime/outside.h"

#include <ATen/ATen.h>
#include <torch/custom_class.h>

// A libtorch that was built without torch.distributed has no collectives.
#if __has_include(<torch/csrc/distributed/c10d/Work.hpp>)
#include <torch/csrc/distributed/c10d/Work.hpp>
#define TORCH_LAZY_COLLECTIVES 1
#endif

#include <set>

namespace torch_lazy {

bool collective_writes(const OperatorInfo& op, size_t argument) {
  const std::string& operation = op.operator_name.name;
  const std::string& name = op.handle.schema().arguments()[argument].name();
  return name.rfind("input", 0) != 0 && operation != "c10d::send" && operation != "c10d::barrier";
}

#ifdef TORCH_LAZY_COLLECTIVES
namespace {

using FuturePtr = c10::intrusive_ptr<c10::ivalue::Future>;

class LazyWork final : public c10d::Work {
 public:
  LazyWork(c10::intrusive_ptr<c10d::Work> work, std::vector<TensorPair> pairs)
      : c10d::Work(-1, work->retrieveOpType()), work_(std::move(work)), pairs_(std::move(pairs)) {}

  ~LazyWork() override { outside::forget_done(); }

  bool isCompleted() override { return work_->isCompleted(); }
  bool isSuccess() const override { return work_->isSuccess(); }
  std::exception_ptr exception() const override { return work_->exception(); }
  int sourceRank() const override { return work_->sourceRank(); }
  void abort() override { work_->abort(); }
  float getDuration() const override { return work_->getDuration(); }
  uint64_t getSequencenumber() const override { return work_->getSequencenumber(); }
  FuturePtr getFutureResult() override { return work_->getFutureResult(); }

  void synchronize() override {
    work_->synchronize();
    outside::forget_done();
  }

  void blockCurrentStream() override { wait(kNoTimeout); }

  bool wait(std::chrono::milliseconds timeout) override {
    const bool done = work_->wait(timeout);
    outside::forget_done();
    return done;
  }

  std::vector<at::Tensor> result() override {
    std::vector<at::Tensor> results = work_->result();
    for (at::Tensor& result : results) {
      result = lazy_of(pairs_, result);
    }
    return results;
  }

  /// Completed when the work is, with lazy tensors.
  FuturePtr getFuture() override {
    FuturePtr real = work_->getFuture();
    std::set<c10::DeviceIndex> indices;
    for (const TensorPair& pair : pairs_) {
      indices.insert(pair.first.device().index());
    }
    std::vector<c10::Device> devices;
    for (c10::DeviceIndex index : indices) {
      devices.emplace_back(at::kLazy, index);
    }
    auto future = c10::make_intrusive<c10::ivalue::Future>(real->elementType(), devices);
    real->addCallback(
        [future, pairs = pairs_](c10::ivalue::Future& done) {
          if (done.hasError()) {
            future->setError(done.exception_ptr());
            return;
          }
          auto lazy = [&](const at::Tensor& t) { return lazy_of(pairs, t); };
          future->markCompleted(map_tensors(done.constValue(), lazy));
        },
        /*uses_future=*/false);
    return future;
  }

 private:
  static at::Tensor lazy_of(const std::vector<TensorPair>& pairs, const at::Tensor& result) {
    for (const auto& [lazy, real] : pairs) {
      if (real.is_same(result)) {
        return lazy;
      }
    }
    for (const auto& [lazy, real] : pairs) {
      if (result.defined() && real.is_alias_of(result)) {
        return make_tensor(lazy.storage(), Layout::of(result));
      }
    }
    return result;
  }

  c10::intrusive_ptr<c10d::Work> work_;
  std::vector<TensorPair> pairs_;
};

/// Its future is done before its callbacks run, the work itself only after them: a callback that
/// reads the result must not wait for the work.
std::shared_ptr<outside::User> user_of(const c10::intrusive_ptr<c10d::Work>& work) {
  auto user = std::make_shared<outside::User>();
  try {
    FuturePtr future = work->getFuture();
    user->is_done = [future] { return future->completed(); };
    user->wait = [future] { future->waitAndThrow(); };
  } catch (const c10::Error&) {  // sends and receives have none, and so no callbacks
    user->is_done = [work] { return work->isCompleted(); };
    user->wait = [work] { work->wait(); };
  }
  return user;
}

}  // namespace

c10::IValue wrap_work(const Call& call, c10::IValue result, const std::vector<TensorPair>& pairs) {
  if (call.op.operator_name.name.rfind("c10d::", 0) != 0 || !result.isObject()) {
    return result;
  }
  auto work = result.toCustomClass<c10d::Work>();
  if (!work->isCompleted()) {
    std::shared_ptr<outside::User> user = user_of(work);
    for (size_t i = 0; i < call.arguments.size(); ++i) {
      const bool written = collective_writes(call.op, i);
      visit_tensors(call.arguments[i], [&](const at::Tensor& tensor) {
        for (const auto& [lazy, real] : pairs) {
          if (lazy.is_same(tensor)) {
            outside::begin(real.storage(), written, user);
          }
        }
      });
    }
  }
  return c10::intrusive_ptr<c10d::Work>(c10::make_intrusive<LazyWork>(std::move(work), pairs));
}
#else
c10::IValue wrap_work(const Call&, c10::IValue result, const std::vector<TensorPair>&) {
  return result;
}
#endif

}  // namespace torch_lazy
