// What a recording depends on in the program's objects: items of dicts and lists, cells of
// closures. Checked in every call before a replay.
#pragma once

#include "python/dict_version.h"

#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace torch_lazy {

/// Whether two values of one type are equal; of what has no plain answer, only one object is.
bool same_value(PyObject* a, PyObject* b);

class Guards {
 public:
  enum class Result {
    hold,
    other,  // a value is another one, and may become this one again (train and eval)
    stale,  // an object was replaced
  };

  /// How an item is compared.
  enum class Mode : int { object, value, number };

  /// `list`: (container, items, size) with items (key or place, expected, mode); size -1: any.
  /// A container is a dict, a list or a cell.
  explicit Guards(const pybind11::list& list);

  Result check();

  /// The numbers with slots as the last check saw them, and whether one is not the recorded one.
  const std::vector<double>& numbers() const { return numbers_; }
  bool numbers_changed() const { return numbers_ != recorded_numbers_; }

 private:
  struct Item {
    pybind11::object key;
    Py_ssize_t place = 0;  // in a list
    pybind11::object expected;
    Mode mode = Mode::object;
    size_t number = 0;
  };

  struct Container {
    enum class Kind { dict, list, cell } kind = Kind::dict;
    pybind11::object object;
    std::vector<Item> items;
    Py_ssize_t size = -1;
    std::optional<DictVersion> version;  // of a dict
    uint64_t held = 0;                   // the version with which all items held; 0: none

    uint64_t current_version() const { return version ? version->current() : 0; }
  };

  Result check(Container& container);
  Result check(const Item& item, PyObject* found);

  std::vector<Container> containers_;
  std::vector<double> numbers_;
  std::vector<double> recorded_numbers_;
};

}  // namespace torch_lazy
