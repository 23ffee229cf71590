// The few operators that have kernels of their own: making tensors, moving data between devices,
// reading a number, and changing what a tensor refers to.
#include "base/fault.h"
#include "base/metrics.h"
#include "capture/capture.h"
#include "capture/register.h"
#include "capture/tensor.h"
#include "runtime/executor.h"
#include "runtime/real_tensor.h"
#include "runtime/watch.h"
#include <torch_lazy/backend.h>

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/native/ResizeCommon.h>
#include <ATen/native/TensorFactories.h>
#include <c10/util/safe_numerics.h>
#include <torch/library.h>

namespace torch_lazy {
namespace {

void check_factory(std::optional<at::Layout> layout, std::optional<bool> pin_memory) {
  TORCH_CHECK_NOT_IMPLEMENTED(layout.value_or(at::kStrided) == at::kStrided,
                              "torch-lazy: device lazy holds plain strided tensors only, but ",
                              *layout, " was asked for");
  TORCH_CHECK(!pin_memory.value_or(false), "torch-lazy: only CPU tensors can be pinned");
}

c10::DeviceIndex index_of(std::optional<at::Device> device) {
  return device ? checked_index(*device) : 0;
}

/// A tensor of undefined content, which is alive for who asks for the live ones.
at::Tensor make_listed(const Layout& layout, int64_t nbytes, std::optional<at::Device> device) {
  at::Tensor tensor = make_undefined(layout, nbytes, index_of(device));
  GraphLock lock;
  Program::instance().list(buffer_of(tensor));
  return tensor;
}

Layout dense_layout(at::IntArrayRef sizes, at::ScalarType dtype,
                    std::optional<at::MemoryFormat> memory_format) {
  Layout layout;
  layout.dtype = dtype;
  layout.sizes.assign(sizes.begin(), sizes.end());
  if (memory_format.value_or(at::MemoryFormat::Contiguous) == at::MemoryFormat::Contiguous) {
    layout.strides.resize(sizes.size());
    int64_t stride = 1;
    bool overflowed = false;
    for (size_t i = sizes.size(); i-- > 0;) {
      layout.strides[i] = stride;
      if (i > 0) {
        overflowed |= c10::mul_overflows(stride, std::max<int64_t>(sizes[i], 1), &stride);
      }
    }
    TORCH_CHECK(!overflowed, "Stride calculation overflowed");
    return layout;
  }
  at::Tensor meta = at::detail::empty_meta(sizes, dtype, memory_format);
  layout.strides.assign(meta.strides().begin(), meta.strides().end());
  return layout;
}

/// Fresh memory has a content that says so where the program asked for determinism, as in eager.
bool fills_fresh_memory() {
  const at::Context& context = at::globalContext();
  return context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory();
}

at::Tensor filled_if_asked(at::Tensor tensor) {
  return fills_fresh_memory() ? at::native::fill_empty_deterministic_(tensor) : tensor;
}

void warn_as_eager(at::ScalarType dtype) {
  if (dtype == at::kComplexHalf) {
    at::empty({0}, dtype);  // that it is experimental
  }
}

at::Tensor empty(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout> layout, std::optional<at::Device> device,
                 std::optional<bool> pin_memory, std::optional<at::MemoryFormat> memory_format) {
  check_factory(layout, pin_memory);
  auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  at::detail::check_size_nonnegative(sizes);
  const at::ScalarType type = c10::dtype_or_default(dtype);
  warn_as_eager(type);
  const auto nbytes = static_cast<int64_t>(
      at::detail::computeStorageNbytesContiguous(sizes, c10::elementSize(type)));
  return filled_if_asked(make_listed(dense_layout(sizes, type, memory_format), nbytes, device));
}

at::Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                         std::optional<at::Device> device, std::optional<bool> pin_memory) {
  check_factory(layout, pin_memory);
  auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  auto strides = C10_AS_INTARRAYREF_SLOW(stride);
  at::detail::check_size_nonnegative(sizes);
  Layout strided;
  strided.dtype = c10::dtype_or_default(dtype);
  warn_as_eager(strided.dtype);
  strided.sizes.assign(sizes.begin(), sizes.end());
  strided.strides.assign(strides.begin(), strides.end());
  return filled_if_asked(
      make_listed(strided, bytes_spanned(sizes, strides, 0, strided.dtype), device));
}

/// Calls the boxed kernel for an operator that also has a kernel here.
at::Tensor capture_one(const char* name, Stack stack) {
  auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
  capture(op, &stack);
  return stack[0].toTensor();
}

at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  if (!is_lazy(self)) {
    metrics::counter("lazy::copy_to_host").add();
    watch_obstacle("it copies a tensor to the CPU");
    fault_point(Stage::read);
    RealCopySource from(source);
    self.copy_(from.tensor(), non_blocking);
    return self;
  }
  if (is_lazy(source) && source.device() != self.device()) {
    RealCopySource from(source);
    return self.copy_(from.tensor(), non_blocking);
  }
  at::Tensor from = source;
  if (!is_lazy(source)) {
    TORCH_CHECK_NOT_IMPLEMENTED(source.layout() == at::kStrided && !source.is_quantized(),
                                "torch-lazy: cannot copy a ", source.toString(),
                                " into a lazy tensor");
    at::Tensor expanded = *at::expand_inplace(self, source, "copy_");
    if (covers_storage(self)) {
      upload_to_buffer(buffer_of(self), expanded, Layout::of(self));
      return self;
    }
    const Layout dense = dense_layout(source.sizes(), source.scalar_type(), std::nullopt);
    from = make_undefined(dense, static_cast<int64_t>(source.numel() * source.itemsize()),
                          self.device().index());
    upload_to_buffer(buffer_of(from), source, dense);
  }
  capture_one("aten::copy_", {self, from, non_blocking});
  return self;
}

/// Memory for a tensor like `self`. PyTorch's own kernels would drop the strides: they believe that
/// lazy devices have none.
at::Tensor empty_in_format(const at::Tensor& self, const at::TensorOptions& options,
                           std::optional<at::MemoryFormat> memory_format) {
  const at::MemoryFormat format = memory_format.value_or(at::MemoryFormat::Preserve);
  if (format != at::MemoryFormat::Preserve) {
    return at::empty(self.sizes(), options, format);
  }
  if (self.is_non_overlapping_and_dense()) {
    return at::empty_strided(self.sizes(), self.strides(), options);
  }
  return at::empty_strided(self.sizes(), at::infer_dense_strides(self.sizes(), self.strides()),
                           options);
}

at::Tensor empty_like(const at::Tensor& self, std::optional<at::ScalarType> dtype,
                      std::optional<at::Layout> layout, std::optional<at::Device> device,
                      std::optional<bool> pin_memory,
                      std::optional<at::MemoryFormat> memory_format) {
  return empty_in_format(self,
                         at::TensorOptions()
                             .dtype(dtype.value_or(self.scalar_type()))
                             .layout(layout)
                             .device(device.value_or(self.device()))
                             .pinned_memory(pin_memory),
                         memory_format);
}

at::Tensor to_lazy(const at::Tensor& self, at::ScalarType dtype, at::Device device,
                   bool non_blocking, std::optional<at::MemoryFormat> memory_format) {
  const at::TensorOptions options =
      at::TensorOptions().dtype(dtype).device(at::Device(at::kLazy, checked_index(device)));
  return empty_in_format(self, options, memory_format).copy_(self, non_blocking);
}

at::Tensor to_copy(const at::Tensor& self, std::optional<at::ScalarType> dtype,
                   std::optional<at::Layout> layout, std::optional<at::Device> device,
                   std::optional<bool> pin_memory, bool non_blocking,
                   std::optional<at::MemoryFormat> memory_format) {
  TORCH_CHECK_NOT_IMPLEMENTED(layout.value_or(at::kStrided) == at::kStrided,
                              "torch-lazy: device lazy holds plain strided tensors only, but ",
                              *layout, " was asked for");
  if (!device || device->type() == at::kLazy) {
    check_factory(layout, pin_memory);
    if (!is_lazy(self) || (device && checked_index(*device) != self.device().index())) {
      return to_lazy(self, dtype.value_or(self.scalar_type()), *device, non_blocking,
                     memory_format);
    }
    return capture_one("aten::_to_copy", {self, dtype, layout, c10::IValue(), c10::IValue(),
                                          non_blocking, memory_format});
  }
  metrics::counter("lazy::copy_to_host").add();
  watch_obstacle("it copies a tensor to the CPU");
  fault_point(Stage::read);
  RealCopySource from(self);
  return at::_to_copy(from.tensor(),
                      at::TensorOptions(dtype.value_or(self.scalar_type()))
                          .layout(layout)
                          .device(device)
                          .pinned_memory(pin_memory),
                      non_blocking, memory_format);
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  metrics::count_fallback("aten::_local_scalar_dense");
  watch_obstacle("it reads a number out of a tensor, as .item() does");
  fault_point(Stage::read);
  return RealCopySource(self).tensor().item();
}

/// Raises eager's error about sizes that no tensor can have, before anything is changed.
void check_elements(at::IntArrayRef sizes) {
  uint64_t elements = 1;
  bool overflowed = c10::safe_multiplies_u64(sizes, &elements);
  overflowed |= elements > static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  TORCH_CHECK(!overflowed, "numel: integer multiplication overflow");
}

const at::Tensor& resize_(const at::Tensor& self, c10::SymIntArrayRef size,
                          std::optional<at::MemoryFormat> memory_format) {
  auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  check_elements(sizes);
  const auto bytes_before = static_cast<int64_t>(self.storage().nbytes());
  if (self.sizes() != sizes) {
    Layout layout = dense_layout(sizes, self.scalar_type(), std::nullopt);
    grow_storage(self.storage(),
                 static_cast<int64_t>(at::detail::computeStorageNbytesContiguous(
                     sizes, self.itemsize(), static_cast<size_t>(self.storage_offset()))));
    self.unsafeGetTensorImpl()->set_sizes_and_strides(layout.sizes, layout.strides);
  }
  if (memory_format) {
    TORCH_CHECK(*memory_format != at::MemoryFormat::Preserve, "Unsupported memory format",
                *memory_format);
    self.unsafeGetTensorImpl()->empty_tensor_restride(*memory_format);
  }
  if (fills_fresh_memory()) {
    at::native::fill_resize_deterministic_(self, bytes_before);
  }
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source, c10::SymInt offset,
                        c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  auto strides = C10_AS_INTARRAYREF_SLOW(stride);
  TORCH_CHECK(source.device().type() == self.device().type(),
              "Attempted to set the storage of a tensor on device \"", self.device(),
              "\" to a storage on different device \"", source.device(),
              "\".  This is no longer allowed; the devices must match.");
  TORCH_CHECK(sizes.size() == strides.size() || strides.empty(), "mismatch in length of strides ",
              "and shape");
  const int64_t start = offset.expect_int();
  TORCH_CHECK(start >= 0, "Tensor: invalid storage offset ", start);
  check_elements(sizes);
  Layout layout = dense_layout(sizes, self.scalar_type(), std::nullopt);
  if (!strides.empty() || sizes.empty()) {
    layout.strides.assign(strides.begin(), strides.end());
  }
  grow_storage(source, bytes_spanned(layout.sizes, layout.strides, start, layout.dtype));
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(source);
  self.unsafeGetTensorImpl()->set_sizes_and_strides(layout.sizes, layout.strides, start);
  return self;
}

at::Tensor& set_whole_storage(at::Tensor& self, at::Storage source) {
  int64_t count = static_cast<int64_t>(source.nbytes() / self.dtype().itemsize());
  return set_storage(self, std::move(source), 0, c10::SymIntArrayRef({c10::SymInt(count)}), {});
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  TORCH_CHECK(self.scalar_type() == source.scalar_type(), "Could not set tensor of type ",
              source.dtype(), " to a tensor of type ", self.dtype());
  if (!self.is_same(source)) {
    set_storage(self, source.storage(), source.sym_storage_offset(), source.sym_sizes(),
                source.sym_strides());
  }
  return self;
}

at::Tensor& set_empty(at::Tensor& self) {
  return set_storage(self, make_storage(0, self.device().index()), 0,
                     c10::SymIntArrayRef({c10::SymInt(0)}), {});
}

bool is_set_to(const at::Tensor& self, const at::Tensor& source) {
  return self.storage().is_alias_of(source.storage()) &&
         self.storage_offset() == source.storage_offset() && self.sizes() == source.sizes() &&
         self.strides() == source.strides();
}

/// Yes in both directions, so that `module.to("lazy")` keeps its parameters' identity.
bool has_compatible_shallow_copy_type(const at::Tensor& self, const at::Tensor& from) {
  auto plain = [](const at::Tensor& t) {
    return t.layout() == at::kStrided && !t.is_quantized() &&
           !t.unsafeGetTensorImpl()->key_set().has(c10::DispatchKey::Python) &&
           t.unsafeGetTensorImpl()->has_storage();
  };
  return plain(self) && plain(from);
}

/// Copy on write for eager; here a value is never shared, so it is a copy.
at::Tensor lazy_clone(const at::Tensor& self) {
  return self.clone();
}

/// A tensor that is zero without having memory; here it simply has some.
at::Tensor efficient_zeros(at::IntArrayRef size, std::optional<at::ScalarType> dtype,
                           std::optional<at::Layout> layout, std::optional<at::Device> device,
                           std::optional<bool> pin_memory) {
  check_factory(layout, pin_memory);
  return at::zeros(
      size, at::TensorOptions().dtype(dtype).device(at::Device(at::kLazy, index_of(device))));
}

}  // namespace

void register_kernels(torch::Library& m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("empty_like", empty_like);
  m.impl("copy_", copy_);
  m.impl("_to_copy", to_copy);
  m.impl("_local_scalar_dense", local_scalar_dense);
  m.impl("resize_", resize_);
  m.impl("set_.source_Storage_storage_offset", set_storage);
  m.impl("set_.source_Storage", set_whole_storage);
  m.impl("set_.source_Tensor", set_tensor);
  m.impl("set_", set_empty);
  m.impl("is_set_to", is_set_to);
  m.impl("_has_compatible_shallow_copy_type", has_compatible_shallow_copy_type);
  m.impl("_efficientzerotensor", efficient_zeros);
  m.impl("_lazy_clone", lazy_clone);
}

}  // namespace torch_lazy
