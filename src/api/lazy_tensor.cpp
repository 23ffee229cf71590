// LazyTensor over buffers, values and views.
#include "capture/tensor.h"
#include "ir/node.h"
#include "runtime/executor.h"
#include "runtime/failure.h"
#include "runtime/real_tensor.h"
#include <torch_lazy/lazy_tensor.h>

#include <ATen/ATen.h>

#include <utility>

namespace torch_lazy {
namespace {

/// A tensor through which operators read a value, whichever tensor stands for it.
class Borrowed {
 public:
  explicit Borrowed(const IrValue& value)
      : value_(value),
        tensor_(make_undefined(value.layout(), value.value()->nbytes, value.device().index())) {
    GraphLock lock;
    Program::instance().begin_reading(value_.value());
    buffer_of(tensor_).current = value_.value();  // the value's owner stays who it is
  }

  ~Borrowed() {
    GraphLock lock;
    buffer_of(tensor_).current = nullptr;
    Program::instance().end_reading(value_.value(), lock);
  }

  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;

  const at::Tensor& tensor() const { return tensor_; }

 private:
  IrValue value_;
  at::Tensor tensor_;
};

/// Makes the buffer stand for a value that no other stands for. Needs the graph lock.
void give(Buffer& buffer, Value* value, GraphLock& lock) {
  Program::instance().assign(buffer, value, lock);
  value->origin = buffer.id;
}

/// A new tensor over `value` itself. Undefined if another tensor stands for it.
at::Tensor adopt_value(const IrValue& value) {
  at::Tensor result = make_undefined(value.layout(), value.value()->nbytes, value.device().index());
  GraphLock lock;
  if (value.value()->owner) {
    return {};
  }
  give(buffer_of(result), value.value(), lock);
  return result;
}

/// A new tensor with this value, and nobody else's.
at::Tensor tensor_of(const IrValue& value) {
  TORCH_CHECK(value, "torch-lazy: the value is absent");
  at::Tensor result = adopt_value(value);
  if (!result.defined()) {
    BelowEverything below;
    result = Borrowed(value).tensor().clone();
  }
  return result;
}

at::Tensor copy_to_lazy(const at::Tensor& plain, at::ScalarType dtype, at::Device device) {
  TORCH_CHECK(plain.defined() && !is_lazy(plain),
              "torch-lazy: expected a tensor of another device than lazy");
  BelowEverything below;
  return at::_to_copy(plain, at::TensorOptions().dtype(dtype).device(device));
}

/// The data on the CPU; over the same memory if it is there already.
at::Tensor on_host(const DataHandle& handle) {
  BelowEverything below;
  return handle.tensor().cpu();
}

}  // namespace

LazyTensor::Data::Data(at::Tensor tensor) : tensor_(std::move(tensor)) {
  TORCH_CHECK(is_lazy(tensor_), "Input tensor is not a lazy tensor: ", tensor_.toString());
  buffer_of(tensor_);  // raises for a lazy tensor that is not ours
}

void LazyTensor::Data::ir_value_assigned(const IrValue&) {}

LazyTensor::LazyTensor(at::Tensor tensor) : data_(std::make_shared<Data>(std::move(tensor))) {}

LazyTensor LazyTensor::create(const at::Tensor& tensor, at::Device device) {
  LazyTensor result(copy_to_lazy(tensor, tensor.scalar_type(), device));
  result.remember(/*leaf=*/false, /*host=*/true);
  return result;
}

LazyTensor LazyTensor::create(const DataHandle& handle) {
  TORCH_CHECK(handle, "torch-lazy: the data handle is absent");
  at::Tensor result = adopt_value(handle.value());
  if (!result.defined()) {
    result = copy_to_lazy(handle.tensor(), handle.layout().dtype, handle.device());
  }
  return LazyTensor(std::move(result));
}

LazyTensor LazyTensor::create(const IrValue& value) {
  LazyTensor result(tensor_of(value));
  result.remember(/*leaf=*/true, /*host=*/false);
  return result;
}

LazyTensor LazyTensor::create(std::shared_ptr<Data> data) {
  LazyTensor result;
  result.data_ = std::move(data);
  return result;
}

const at::Tensor& LazyTensor::tensor() const {
  TORCH_CHECK(data_, "torch-lazy: this LazyTensor is absent");
  return data_->tensor();
}

Buffer& LazyTensor::buffer() const {
  return buffer_of(tensor());
}

int64_t LazyTensor::id() const {
  return static_cast<int64_t>(buffer().id);
}

int64_t LazyTensor::generation() const {
  GraphLock lock;
  return static_cast<int64_t>(buffer().generation);
}

at::Device LazyTensor::device() const {
  return tensor().device();
}

at::ScalarType LazyTensor::dtype() const {
  return tensor().scalar_type();
}

Layout LazyTensor::layout() const {
  return Layout::of(tensor());
}

int64_t LazyTensor::size(int64_t dim) const {
  return tensor().size(dim);
}

DataHandle LazyTensor::current_data_handle() const {
  GraphLock lock(buffer());
  Value* value = buffer().current;
  if (!value || !(value->data || value->in_flight())) {
    return {};
  }
  Program::instance().begin_reading(value);
  return DataHandle(IrValue(value, layout(), device()));
}

IrValue LazyTensor::current_ir_value() const {
  GraphLock lock(buffer());
  Value* value = buffer().current;
  if (!value || value->failure || !(value->pending() || value->has_history || buffer().leaf)) {
    return {};
  }
  Program::instance().begin_reading(value);
  return {value, layout(), device()};
}

std::optional<at::Tensor> LazyTensor::current_tensor_data() const {
  DataHandle handle;
  {
    GraphLock lock(buffer());
    Value* value = buffer().current;
    if (!value || !value->data || !buffer().host) {
      return std::nullopt;
    }
    Program::instance().begin_reading(value);
    handle = DataHandle(IrValue(value, layout(), device()));
  }
  return on_host(handle);
}

void LazyTensor::apply_pending_graph() const {
  const Reading reading(buffer());
}

DataHandle LazyTensor::data_handle() const {
  while (true) {
    apply_pending_graph();
    DataHandle handle = current_data_handle();
    if (handle && handle.has_value()) {
      return handle;
    }  // another thread has written meanwhile
  }
}

IrValue LazyTensor::ir_value() const {
  IrValue result;
  bool is_new = false;
  std::shared_ptr<Failure> failure;
  {
    GraphLock lock(buffer());
    Value* value = Program::instance().value_of(buffer());
    failure = value->failure;
    if (!failure) {
      Program::instance().begin_reading(value);
      result = IrValue(value, layout(), device());
      is_new = !value->pending() && !std::exchange(buffer().leaf, true);
    }
  }
  if (failure) {
    raise(*failure);
  }
  if (is_new) {
    data_->ir_value_assigned(result);
  }
  return result;
}

at::Tensor LazyTensor::to_tensor(bool detached) const {
  const DataHandle handle = data_handle();
  if (detached) {
    BelowEverything below;
    return handle.tensor().to(at::kCPU, /*non_blocking=*/false, /*copy=*/true);
  }
  at::Tensor result = on_host(handle);
  GraphLock lock;
  if (buffer().current == handle.value().value()) {
    buffer().host = true;
  }
  return result;
}

LazyTensor LazyTensor::copy_to_device(at::Device device) const {
  const DataHandle handle = data_handle();
  return LazyTensor(copy_to_lazy(handle.tensor(), dtype(), device));
}

std::vector<LazyTensor> LazyTensor::make_output_tensors(const IrValue& value) const {
  std::vector<LazyTensor> result;
  for (const IrValue& output : value.outputs()) {
    result.push_back(create(output));
  }
  return result;
}

void LazyTensor::take(const at::Tensor& source) {
  const at::Tensor& self = tensor();
  c10::TensorImpl* impl = self.unsafeGetTensorImpl();
  if (self.sizes() != source.sizes() || self.scalar_type() != source.scalar_type()) {
    const uint64_t generation = buffer().generation;
    const Layout layout = Layout::of(source);
    impl->set_storage_and_dtype(source.storage(), source.dtype());
    impl->set_sizes_and_strides(layout.sizes, layout.strides, layout.offset);
    impl->_set_conj(layout.conj);
    impl->_set_neg(layout.neg);
    GraphLock lock;
    buffer().generation = generation + 1;
  } else if (Layout::of(source).matches(self) && covers_storage(self) &&
             source.storage().nbytes() == self.storage().nbytes()) {
    GraphLock lock({&buffer(), &buffer_of(source)});
    Program& program = Program::instance();
    Value* value = program.value_of(buffer_of(source));
    program.retain(value);
    program.assign(buffer_of(source), nullptr, lock);
    give(buffer(), value, lock);
    program.release(value, lock);
  } else {
    BelowEverything below;
    self.copy_(source);
  }
  if (!self.is_inference()) {
    impl->bump_version();
  }
}

void LazyTensor::remember(bool leaf, bool host) const {
  GraphLock lock;
  const Value* value = buffer().current;
  buffer().leaf = leaf && value && !value->pending();
  buffer().host = host;
}

void LazyTensor::set_ir_value(const IrValue& value) {
  TORCH_CHECK(value.device() == device(), "torch-lazy: a value on ", value.device(),
              " cannot be set on a tensor on ", device());
  if (!value || value != current_ir_value()) {
    take(tensor_of(value));
    remember(/*leaf=*/true, /*host=*/false);
  }
  data_->ir_value_assigned(current_ir_value());
}

void LazyTensor::set_in_place_ir_value(const IrValue& value) {
  if (!value || value.dtype() == dtype()) {
    return set_ir_value(value);
  }
  at::Tensor cast;
  {
    BelowEverything below;
    cast = at::_to_copy(Borrowed(value).tensor(), at::TensorOptions().dtype(dtype()));
  }
  take(cast);
  data_->ir_value_assigned(current_ir_value());
}

void LazyTensor::set_data_handle(const DataHandle& handle, bool sync) {
  TORCH_CHECK(handle, "torch-lazy: the data handle is absent");
  bool host = false;
  {
    GraphLock lock;
    host = buffer().host && !sync;
  }
  if (handle != current_data_handle()) {
    take(create(handle).tensor());
  }
  remember(/*leaf=*/false, host);
  data_->ir_value_assigned(IrValue());
}

void LazyTensor::set_tensor_data(const at::Tensor& tensor) {
  take(copy_to_lazy(tensor, tensor.scalar_type(), device()));
  remember(/*leaf=*/false, /*host=*/true);
  data_->ir_value_assigned(IrValue());
}

void LazyTensor::update_from_tensor(const at::Tensor& tensor, bool sync) {
  if (!sync) {
    return set_tensor_data(tensor);
  }
  take(copy_to_lazy(tensor, dtype(), device()));
  remember(/*leaf=*/true, /*host=*/false);
  data_->ir_value_assigned(current_ir_value());
}

}  // namespace torch_lazy
