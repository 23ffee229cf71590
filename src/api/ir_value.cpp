// Values of the recorded program, and memory, held from outside.
#include "capture/tensor.h"
#include "ir/node.h"
#include "runtime/executor.h"
#include "runtime/real_tensor.h"
#include <torch_lazy/ir_value.h>

#include <ATen/ATen.h>

#include <utility>

namespace torch_lazy {
namespace {

/// Output `index` of a pending node. A result that nothing held any more is made anew; null for
/// what was written and is not wanted.
Value* output_of(Node& node, size_t index) {
  Value*& output = node.outputs[index];
  if (!output && index < node.description->fresh.size()) {
    output = Program::instance().make_value(node.description->fresh[index].nbytes);
    output->producer = &node;
    output->output = static_cast<int>(index);
    ++node.refs;
    Program::instance().segment().leave();  // a trace knows it as dead
  }
  return output;
}

const Layout& output_layout(const Description& description, size_t index) {
  const size_t fresh = description.fresh.size();
  return index < fresh ? description.fresh[index].layout
                       : description.operands[description.writes[index - fresh].operand];
}

}  // namespace

IrValue::IrValue(Value* value, Layout layout, at::Device device)
    : value_(value), layout_(std::move(layout)), device_(device) {}

IrValue::IrValue(const IrValue& other)
    : value_(other.value_), layout_(other.layout_), device_(other.device_) {
  if (value_) {
    GraphLock lock;
    Program::instance().begin_reading(value_);
  }
}

IrValue::IrValue(IrValue&& other) noexcept
    : value_(std::exchange(other.value_, nullptr)),
      layout_(std::move(other.layout_)),
      device_(other.device_) {}

IrValue& IrValue::operator=(IrValue other) noexcept {
  std::swap(value_, other.value_);
  std::swap(layout_, other.layout_);
  std::swap(device_, other.device_);
  return *this;
}

IrValue::~IrValue() {
  if (value_) {
    GraphLock lock;
    Program::instance().end_reading(value_, lock);
  }
}

bool IrValue::operator==(const IrValue& other) const {
  return value_ == other.value_ && (!value_ || layout_ == other.layout_);
}

bool IrValue::is_leaf() const {
  GraphLock lock;
  return value_ && !value_->pending();
}

std::string IrValue::op() const {
  GraphLock lock;
  return value_ && value_->pending() ? value_->producer->description->op->name
                                     : "lazy_tensors::device_data";
}

int IrValue::index() const {
  GraphLock lock;
  return value_ && value_->pending() ? value_->output : 0;
}

std::vector<IrValue> IrValue::operands() const {
  std::vector<IrValue> result;
  GraphLock lock;
  if (value_ && value_->pending()) {
    const Node& node = *value_->producer;
    result.reserve(node.operands.size());
    for (size_t i = 0; i < node.operands.size(); ++i) {
      Program::instance().begin_reading(node.operands[i]);
      result.emplace_back(node.operands[i], node.description->operands[i], device_);
    }
  }
  return result;
}

std::vector<IrValue> IrValue::outputs() const {
  std::vector<IrValue> result;
  {
    GraphLock lock;
    if (value_ && value_->pending()) {
      Node& node = *value_->producer;
      result.reserve(node.outputs.size());
      for (size_t i = 0; i < node.outputs.size(); ++i) {
        if (Value* output = output_of(node, i)) {
          Program::instance().begin_reading(output);
          result.emplace_back(output, output_layout(*node.description, i), device_);
        }
      }
      return result;
    }
  }
  if (value_) {
    result.push_back(*this);
  }
  return result;
}

DataHandle DataHandle::copy_of(const at::Tensor& tensor, at::Device device) {
  BelowEverything below;
  const at::Tensor lazy = at::_to_copy(tensor, at::TensorOptions().device(device));
  GraphLock lock;
  Value* value = Program::instance().value_of(buffer_of(lazy));
  Program::instance().begin_reading(value);
  return DataHandle(IrValue(value, Layout::of(lazy), lazy.device()));
}

DataHandle DataHandle::placeholder(const Layout& layout, at::Device device) {
  const at::Device numbered(at::kLazy, checked_index(device));
  GraphLock lock;
  Value* value = Program::instance().make_value(
      bytes_spanned(layout.sizes, layout.strides, layout.offset, layout.dtype));
  Program::instance().begin_reading(value);
  return DataHandle(IrValue(value, layout, numbered));
}

int64_t DataHandle::id() const {
  return reinterpret_cast<int64_t>(value_.value());
}

bool DataHandle::has_value() const {
  GraphLock lock;
  return value_ && value_.value()->data;
}

void DataHandle::assign(const DataHandle& other) {
  TORCH_CHECK(value_ && other, "torch-lazy: an absent data handle cannot be assigned");
  TORCH_CHECK(layout().sizes == other.layout().sizes && layout().dtype == other.layout().dtype,
              "torch-lazy: data of ", other.layout().shape_text(), " cannot take a place of ",
              layout().shape_text());
  Value* place = value_.value();
  c10::Storage memory = allocate(place->nbytes);
  {
    BelowEverything below;
    real_tensor(memory, layout()).copy_(other.tensor());
  }
  bool undefined = false;
  {
    GraphLock lock;
    undefined = place->undefined();
    if (undefined) {
      Program::instance().set_data(place, std::move(memory));
      if (place->segment == Program::instance().segment().id) {
        Program::instance().segment().leave();  // a trace may know it as undefined
      }
    }
  }
  TORCH_CHECK(undefined,
              "torch-lazy: only a placeholder can be assigned; this data has a value already");
}

at::Tensor DataHandle::tensor() const {
  TORCH_CHECK(value_, "torch-lazy: this data handle is absent");
  c10::Storage data;
  {
    GraphLock lock;
    data = value_.value()->data;
    Program::instance().expose(value_.value());  // whoever gets the tensor may write into it
  }
  TORCH_CHECK(data, "Trying to access data while an async operation is in flight: ",
              layout().shape_text(), " on ", device(), " has no value yet");
  // The tensor holds the value and not just its memory: who writes the buffer next then sees that
  // the old value is wanted, and writes elsewhere.
  auto* held = new std::pair<IrValue, c10::Storage>(value_, data);
  c10::DataPtr pointer(
      data.mutable_data(), held,
      [](void* context) { delete static_cast<std::pair<IrValue, c10::Storage>*>(context); },
      data.device());
  c10::Storage shared(c10::Storage::use_byte_size_t(), data.nbytes(), std::move(pointer),
                      /*allocator=*/nullptr, /*resizable=*/false);
  return real_tensor(std::move(shared), layout());
}

}  // namespace torch_lazy
