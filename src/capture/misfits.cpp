#include "capture/misfits.h"

#include "capture/tensor.h"
#include <torch_lazy/backend.h>

#include <ATen/ATen.h>
#include <c10/core/DefaultDtype.h>

#include <algorithm>

namespace torch_lazy {
namespace {

constexpr uint64_t kMisfit = 0xff;  // none of the tags that keep kinds of arguments apart

/// Calls `visit` with all numbers of an argument that reaches a kernel as one or more.
template <typename Visit>
void visit_numbers(const c10::IValue& value, const ArgumentInfo& info, Visit visit) {
  if (value.isTensor()) {
    const at::Tensor& t = value.toTensor();
    if (t.defined() && !is_lazy(t) && t.dim() == 0) {
      visit(number_value(value));
    }
  } else if (info.kind == ArgumentKind::number && value.isScalar()) {
    visit(value.toScalar());
  } else if (info.kind == ArgumentKind::number_list && value.isDoubleList()) {
    for (double number : value.toDoubleVector()) {
      visit(c10::Scalar(number));
    }
  } else if (info.kind == ArgumentKind::number_list && value.isList()) {
    for (const c10::IValue& element : value.toListRef()) {
      visit(element.isScalar() ? element.toScalar() : c10::Scalar());
    }
  }
}

}  // namespace

bool surely_fits(const at::Tensor& number) {
  if (!number.unsafeGetTensorImpl()->storage_initialized() || number.is_neg()) {
    return false;
  }
  switch (number.scalar_type()) {
    case at::kBool:
      return true;
    case at::kLong:
      return always_fits(static_cast<double>(*number.const_data_ptr<int64_t>()));
    case at::kFloat:
      return always_fits(*number.const_data_ptr<float>());
    case at::kDouble:
      return always_fits(*number.const_data_ptr<double>());
    default:
      return false;
  }
}

void identify_misfits(const Call& call, Key& key) {
  c10::SmallVector<at::ScalarType, 6> dtypes = {c10::get_default_dtype_as_scalartype()};
  auto add = [&](at::ScalarType dtype) {
    if (std::find(dtypes.begin(), dtypes.end(), dtype) == dtypes.end()) {
      dtypes.push_back(dtype);
    }
  };
  for (const at::Tensor* tensor : call.tensors) {
    add(tensor->scalar_type());
  }
  const auto& schema = call.op.handle.schema().arguments();
  for (size_t i = 0; i < call.arguments.size(); ++i) {
    if (call.arguments[i].isInt() && schema[i].name() == "dtype") {
      add(static_cast<at::ScalarType>(call.arguments[i].toInt()));
    }
  }
  uint64_t place = 0;
  for (size_t i = 0; i < call.arguments.size(); ++i) {
    visit_numbers(call.arguments[i], call.op.arguments[i], [&](const c10::Scalar& number) {
      ++place;
      for (at::ScalarType dtype : dtypes) {
        if (overflows(number, dtype)) {
          key.push_back(kMisfit | static_cast<uint64_t>(dtype) << 8 | place << 16);
        }
      }
    });
  }
}

}  // namespace torch_lazy
