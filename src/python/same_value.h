// Values of Python that are compared by what they are: nothing that a program could tell apart is
// equal.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace torch_lazy {

/// Whether two objects of this type and content are the same to a program: numbers, texts, and
/// tuples of them, of exactly these types. Of other objects only one and the same is.
bool has_value(PyObject* object);

/// Whether two objects are one, or equal values: of one type, floating-point numbers bit by bit,
/// items in one order.
bool same_value(PyObject* a, PyObject* b);

}  // namespace torch_lazy
