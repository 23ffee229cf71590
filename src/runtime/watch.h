// What happens while a function is recorded to be replayed (replay/recorder.h) and does not show
// in the graph: random numbers, data from the host, and what keeps the function from being
// replayed. Capture and runtime tell it here.
#pragma once

#include "ir/node.h"
#include <torch_lazy/layout.h>
#include <torch_lazy/operator.h>

#include <ATen/core/stack.h>

#include <string>
#include <vector>

namespace torch_lazy {

/// Random numbers that were drawn over the whole of a buffer.
struct Draw {
  const OperatorInfo* op = nullptr;
  std::vector<c10::IValue> arguments;  // the first stands for the tensor
  Layout layout;
  int64_t nbytes = 0;
};

/// Data that came from a plain tensor.
struct Upload {
  at::Tensor source;
  Layout layout;  // as it lies in its new memory
  int64_t nbytes = 0;
};

/// While alive, this thread is watched. One thread at a time is: `active` says whether it is this.
class Watch {
 public:
  Watch();
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  bool active() const { return active_; }

  /// Why what was recorded cannot be replayed; empty: it can.
  std::string obstacle() const;

  /// Whether that is what another thread did meanwhile.
  bool is_disturbed() const;

  /// Around a draw, and at the end: nobody else may change the state of the generator, which no
  /// replay would do.
  void begin_draw();
  void end_draw();

  void add_draw(Value* value, Draw draw, GraphLock& lock);
  void add_upload(Value* value, const at::Tensor& source, const Layout& layout, GraphLock& lock);

  const std::vector<Draw>& draws() const { return draws_; }
  const std::vector<Upload>& uploads() const { return uploads_; }
  const std::vector<Value*>& drawn() const { return drawn_; }
  const std::vector<Value*>& uploaded() const { return uploaded_; }

 private:
  friend void watch_obstacle(const std::string& what);

  std::vector<Draw> draws_;
  std::vector<Upload> uploads_;
  // Their values, held.
  std::vector<Value*> drawn_;
  std::vector<Value*> uploaded_;

  bool active_ = false;
  at::Tensor generator_state_;
  std::string obstacle_;
  bool disturbed_ = false;
};

/// The watch over this thread; null: none.
Watch* watch();

/// Something keeps what is recorded from being replayed: a value was read, another thread records
/// as well. The first one counts; the line of the user's code is added.
void watch_obstacle(const std::string& what);

/// A thread records a call.
void watch_call();

}  // namespace torch_lazy
