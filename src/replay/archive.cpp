#include "replay/archive.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>
#include <cstring>

namespace torch_lazy {
namespace {

using Tag = ArchiveTag;

constexpr int64_t kMostDimensions = 64;
constexpr int64_t kMostBytesPerElement = 16;

uint64_t bits(double value) {
  return std::bit_cast<uint64_t>(value);
}

double real(uint64_t word) {
  return std::bit_cast<double>(word);
}

/// How many bytes the character at the beginning takes in UTF-8; 0: it is none that can be shown.
size_t length_of_character(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  if (byte(0) < 0x80) {
    return byte(0) >= 0x20 && byte(0) != 0x7f ? 1 : 0;
  }
  const size_t length = byte(0) >= 0xf0 ? 4 : byte(0) >= 0xe0 ? 3 : 2;
  if (byte(0) < 0xc2 || byte(0) > 0xf4 || text.size() < length) {
    return 0;
  }
  uint32_t code = byte(0) & (0x7f >> length);
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) {
      return 0;
    }
    code = code << 6 | (byte(i) & 0x3f);
  }
  const bool surrogate = code >= 0xd800 && code < 0xe000;
  const bool overlong = code < (length == 4 ? 0x10000U : length == 3 ? 0x800U : 0x80U);
  return surrogate || overlong || code > 0x10ffff ? 0 : length;
}

}  // namespace

std::string printable(std::string_view text) {
  std::string shown;
  while (!text.empty()) {
    size_t length = length_of_character(text);
    if (length == 0 && text.front() != '\n') {
      constexpr std::string_view kDigits = "0123456789abcdef";
      const auto byte = static_cast<unsigned char>(text.front());
      shown += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
    } else {
      shown += text.substr(0, std::max<size_t>(length, 1));
    }
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  return shown;
}

void ArchiveWriter::bytes(const void* data, size_t size) {
  contents_.append(static_cast<const char*>(data), size);
}

void ArchiveWriter::number(uint64_t value) {
  bytes(&value, sizeof(value));
}

void ArchiveWriter::text(std::string_view text) {
  number(text.size());
  bytes(text.data(), text.size());
}

void ArchiveWriter::layout(const Layout& layout) {
  number(static_cast<uint64_t>(layout.dtype) << 2 | static_cast<uint64_t>(layout.conj) << 1 |
         static_cast<uint64_t>(layout.neg));
  number(static_cast<uint64_t>(layout.offset));
  number(layout.sizes.size());
  for (size_t i = 0; i < layout.sizes.size(); ++i) {
    number(static_cast<uint64_t>(layout.sizes[i]));
    number(static_cast<uint64_t>(layout.strides[i]));
  }
}

void ArchiveWriter::value(const c10::IValue& value) {
  auto tag = [this](Tag which) { number(static_cast<uint64_t>(which)); };
  if (value.isNone()) {
    tag(Tag::none);
  } else if (value.isBool()) {
    tag(Tag::boolean);
    number(value.toBool());
  } else if (value.isInt() || value.isSymInt()) {
    tag(Tag::integer);
    number(static_cast<uint64_t>(value.toInt()));
  } else if (value.isDouble()) {
    tag(Tag::real);
    number(bits(value.toDouble()));
  } else if (value.isComplexDouble()) {
    tag(Tag::complex);
    number(bits(value.toComplexDouble().real()));
    number(bits(value.toComplexDouble().imag()));
  } else if (value.isString()) {
    tag(Tag::text);
    text(value.toStringRef());
  } else if (value.isDevice()) {
    tag(Tag::device);  // the one that it is all on
  } else if (value.isIntList()) {
    tag(Tag::integers);
    const auto list = value.toIntVector();
    number(list.size());
    for (int64_t element : list) {
      number(static_cast<uint64_t>(element));
    }
  } else if (value.isDoubleList()) {
    tag(Tag::reals);
    const auto list = value.toDoubleVector();
    number(list.size());
    for (double element : list) {
      number(bits(element));
    }
  } else if (value.isBoolList()) {
    tag(Tag::booleans);
    const auto list = value.toBoolList();
    number(list.size());
    for (bool element : list) {
      number(element);
    }
  } else if (value.isTensor() && !value.toTensor().defined()) {
    tag(Tag::undefined_tensor);
  } else if (value.isTensor() && value.toTensor().dim() == 0 && value.toTensor().is_cpu()) {
    const at::Tensor& tensor = value.toTensor();
    tag(tensor.unsafeGetTensorImpl()->is_wrapped_number() ? Tag::wrapped_number
                                                          : Tag::scalar_tensor);
    number(static_cast<uint64_t>(tensor.scalar_type()));
    this->value(tensor.item());
  } else if (value.isList()) {
    tag(Tag::list);
    number(value.toListRef().size());
    for (const c10::IValue& element : value.toListRef()) {
      this->value(element);
    }
  } else {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "torch-lazy: an argument of kind ", value.tagKind(),
                                " cannot be saved in a graph");
  }
}

void ArchiveReader::damaged(const std::string& what) const {
  throw DamagedGraph(
      {__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
      "torch-lazy: " + printable(file_) + " is no graph that can be loaded: " + printable(what));
}

std::string_view ArchiveReader::bytes(size_t size) {
  if (size > rest_.size()) {
    damaged("it ends too early");
  }
  std::string_view found = rest_.substr(0, size);
  rest_.remove_prefix(size);
  return found;
}

uint64_t ArchiveReader::number() {
  uint64_t value = 0;
  std::memcpy(&value, bytes(sizeof(value)).data(), sizeof(value));
  return value;
}

uint32_t ArchiveReader::index(uint64_t limit) {
  const uint64_t value = number();
  if (value >= limit) {
    damaged("it refers to something that it does not have");
  }
  return static_cast<uint32_t>(value);
}

size_t ArchiveReader::count() {
  const uint64_t value = number();
  if (value > rest_.size()) {
    damaged("it ends too early");
  }
  return value;
}

std::string ArchiveReader::text() {
  return std::string(bytes(count()));
}

Layout ArchiveReader::layout() {
  Layout layout;
  const uint64_t word = number();
  layout.dtype = dtype(word >> 2);
  layout.conj = word >> 1 & 1;
  layout.neg = word & 1;
  if ((layout.conj && !c10::isComplexType(layout.dtype)) ||
      (layout.neg && c10::isIntegralType(layout.dtype, /*includeBool=*/true))) {
    damaged("it has a conjugate or negative view of a type that has none");
  }
  layout.offset = static_cast<int64_t>(number());
  const uint64_t dimensions = number();
  if (dimensions > kMostDimensions || layout.offset < 0) {
    damaged("it has a tensor of an impossible shape");
  }
  int64_t nbytes = kMostBytesPerElement;
  for (uint64_t i = 0; i < dimensions; ++i) {
    layout.sizes.push_back(static_cast<int64_t>(number()));
    layout.strides.push_back(static_cast<int64_t>(number()));
    if (layout.sizes.back() < 0 || layout.strides.back() < 0 ||
        __builtin_mul_overflow(nbytes, layout.sizes.back(), &nbytes)) {
      damaged("it has a tensor of an impossible shape");
    }
  }
  return layout;
}

at::ScalarType ArchiveReader::dtype(uint64_t word) const {
  const auto type = static_cast<at::ScalarType>(word);
  if (word >= static_cast<uint64_t>(at::ScalarType::NumOptions) ||
      (!c10::isFloatingType(type) && !c10::isIntegralType(type, /*includeBool=*/true) &&
       !c10::isComplexType(type))) {
    damaged("it has a tensor of an unknown type");
  }
  return type;
}

at::ScalarType ArchiveReader::floating_dtype() {
  const at::ScalarType type = dtype(number());
  if (!c10::isFloatingType(type)) {
    damaged("it has a default dtype that is no floating-point type");
  }
  return type;
}

c10::IValue ArchiveReader::value() {
  const Tag tag = static_cast<Tag>(number());
  switch (tag) {
    case Tag::none:
      return {};
    case Tag::boolean:
    case Tag::integer:
    case Tag::real:
    case Tag::complex:
      return scalar(tag);
    case Tag::text:
      return text();
    case Tag::device:
      return at::Device(at::kLazy, 0);
    case Tag::integers: {
      std::vector<int64_t> list(count());
      for (int64_t& element : list) {
        element = static_cast<int64_t>(number());
      }
      return list;
    }
    case Tag::reals: {
      std::vector<double> list(count());
      for (double& element : list) {
        element = real(number());
      }
      return list;
    }
    case Tag::booleans: {
      c10::List<bool> list;
      for (size_t left = count(); left > 0; --left) {
        list.push_back(number() != 0);
      }
      return list;
    }
    case Tag::list: {
      c10::impl::GenericList list(c10::NumberType::get());
      for (size_t left = count(); left > 0; --left) {
        list.push_back(scalar(static_cast<Tag>(number())));
      }
      return list;
    }
    case Tag::wrapped_number: {
      at::Tensor tensor = scalar_tensor();
      tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
      return tensor;
    }
    case Tag::scalar_tensor:
      return scalar_tensor();
    case Tag::undefined_tensor:
      return at::Tensor();
  }
  damaged("it has a value of an unknown kind");
}

at::Tensor ArchiveReader::scalar_tensor() {
  const at::ScalarType type = dtype(number());
  const c10::Scalar value = scalar(static_cast<Tag>(number())).toScalar();
  try {
    return at::scalar_tensor(value, type);
  } catch (const c10::Error&) {
    damaged("it has a number that its type cannot hold");
  }
}

c10::IValue ArchiveReader::scalar(ArchiveTag tag) {
  switch (tag) {
    case Tag::boolean:
      return number() != 0;
    case Tag::integer:
      return static_cast<int64_t>(number());
    case Tag::real:
      return real(number());
    case Tag::complex: {
      const double first = real(number());
      return c10::complex<double>(first, real(number()));
    }
    default:
      damaged("it has a number that is none");
  }
}

}  // namespace torch_lazy
