// What a recording depends on in the program's objects: items of dicts and lists, attributes, cells
// of closures, classes, functions. Checked in every call before a replay.
#pragma once

#include "python/dict_version.h"

#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

namespace torch_lazy {

class Guards {
 public:
  enum class Result {
    hold,
    other,  // a value is another one, and may become this one again (train and eval)
    stale,  // an object was replaced
  };

  /// How an item is compared.
  enum class Mode : int {
    same,    // one object
    equal,   // of equal value
    number,  // a float that replays follow
    absent,
  };

  /// What items are looked up in.
  enum class Kind : int {
    dict,       // by key; with a size: these items in this order
    list,       // in order
    cell,       // its content
    type,       // its name, and attributes, along the classes that it inherits from
    slots,      // attributes of an object that are no items of its dict
    sequence,   // what iterating over it gives: a deque, a set
    instance,   // its class and its dict
    function,   // code, defaults, closure, name
    memory,     // bytes and how they lie, equal to a copy
    reference,  // what a weak reference refers to
    cached,     // a function with a cache: what it holds
    answer,     // what a function without arguments says
    partial,    // what functools.partial calls
  };

  /// `list`: (kind, container, items, size, watched) with items (key, expected, mode). The size of
  /// a class is its version: any change makes it another one. A size of -1: any; then keys in the
  /// set `watched` that are no items must not come to it, nor to a class attributes that Python
  /// itself looks up.
  explicit Guards(const pybind11::list& list);

  Result check();

  /// Whether an object is one of those that are checked.
  bool guards(PyObject* object) const { return objects_.count(object) != 0; }

  /// The place of the one that did not hold the last time; -1: all did.
  int64_t failed() const { return failed_; }

  /// The numbers with slots as the last check saw them, and whether one is not the recorded one.
  const std::vector<double>& numbers() const { return numbers_; }
  bool numbers_changed() const { return numbers_ != recorded_numbers_; }

 private:
  struct Item {
    pybind11::object key;
    pybind11::object expected;
    Mode mode = Mode::same;
    size_t number = 0;
  };

  struct Container {
    Kind kind = Kind::dict;
    pybind11::object object;
    std::vector<Item> items;
    Py_ssize_t size = -1;
    pybind11::object watched;            // a set; null: none
    pybind11::set known;                 // keys of the items
    std::vector<char> special;           // of a class, by its bases: special methods count, too
    std::optional<DictVersion> version;  // of a dict
    pybind11::object name, full_name;    // of a class, which are in no dict
    uint64_t held = 0;                   // the version with which all items held; 0: none

    uint64_t current_version() const;
    bool has_name() const;
  };

  /// What tells of most containers that they are as they were, close together in memory.
  struct Glance {
    PyObject* object = nullptr;
    PyObject* type = nullptr;  // of an instance, with its dict
    PyObject* dict = nullptr;
    uint64_t held = 0;  // of a dict: the version with which all items held; 0: none

    bool holds() const;
  };

  Result check(Container& container);
  Result check(const Item& item, PyObject* found);
  Result check_named(const Container& container);
  Result check_whole_dict(const Container& container);
  Result check_ordered_dict(const Container& container);
  Result check_list(const Container& container);
  Result check_sequence(const Container& container);

  std::vector<Container> containers_;
  std::vector<Glance> glances_;  // one for each
  std::unordered_set<PyObject*> objects_;
  int64_t failed_ = -1;
  std::vector<double> numbers_;
  std::vector<double> recorded_numbers_;
};

void bind_guards(pybind11::module_& m);

}  // namespace torch_lazy
