// The public functions of torch_lazy.h, but those that are the executor's (api/steps.cpp).
#include "base/metrics.h"
#include "base/settings.h"
#include "capture/tensor.h"
#include "ir/dump.h"
#include "runtime/executor.h"
#include <torch_lazy/backend.h>
#include <torch_lazy/torch_lazy.h>

namespace torch_lazy {
namespace {

std::vector<Buffer*> buffers_of(at::TensorList tensors) {
  std::vector<Buffer*> buffers;
  for (const at::Tensor& tensor : tensors) {
    buffers.push_back(&buffer_of(tensor));
  }
  return buffers;
}

std::vector<Layout> layouts_of(at::TensorList tensors) {
  std::vector<Layout> layouts;
  for (const at::Tensor& tensor : tensors) {
    layouts.push_back(Layout::of(tensor));
  }
  return layouts;
}

}  // namespace

void sync(at::TensorList tensors, bool wait) {
  std::vector<Buffer*> buffers = buffers_of(tensors);
  run_buffers(buffers);
  if (wait) {
    wait_for_buffers(buffers);
  }
}

at::Tensor to_real(const at::Tensor& tensor) {
  ExecutionLock execution;
  // Pending readers run first: whoever gets the plain tensor may write through it.
  return real_of(tensor, /*to_write=*/true);
}

at::Tensor from_real(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.device().type() == real_device().type(),
              "torch-lazy: from_real takes a tensor of the real device, ", real_device(),
              ", but got one on ", tensor.device());
  at::Tensor lazy = adopt(tensor, 0);
  GraphLock lock;
  Program::instance().expose(buffer_of(lazy).current);
  return lazy;
}

int64_t tensor_id(const at::Tensor& tensor) {
  return static_cast<int64_t>(buffer_of(tensor).id);
}

bool is_pending(const at::Tensor& tensor) {
  Buffer& buffer = buffer_of(tensor);
  GraphLock lock;
  return buffer.current && buffer.current->pending();
}

int64_t pending_nodes() {
  GraphLock lock;
  return static_cast<int64_t>(Program::instance().pending());
}

std::string graph_text(at::TensorList tensors) {
  return dump_text(buffers_of(tensors), layouts_of(tensors));
}

std::string graph_dot(at::TensorList tensors) {
  return dump_dot(buffers_of(tensors), layouts_of(tensors));
}

std::optional<int64_t> counter_value(const std::string& name) {
  return metrics::counter_value(name);
}

std::vector<std::string> counter_names() {
  return metrics::counter_names();
}

std::string metrics_report() {
  return metrics::report();
}

void reset_metrics() {
  metrics::reset();
}

std::string get_setting(const std::string& name) {
  return get_setting_value(name);
}

void set_setting(const std::string& name, const std::string& value) {
  set_setting_value(name, value);
}

}  // namespace torch_lazy
