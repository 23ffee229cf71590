// Versions of dicts: one that has not changed since it was looked through need not be again.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <memory>

namespace torch_lazy {

struct WatchedDict;

/// Tells whether a dict has changed. Made, asked and destroyed with the GIL held.
class DictVersion {
 public:
  explicit DictVersion(PyObject* dict);

  /// A number that is another one whenever the dict has changed; 0: there is none.
#if PY_VERSION_HEX < 0x030C0000
  uint64_t current() const { return reinterpret_cast<PyDictObject*>(dict_.ptr())->ma_version_tag; }
#else
  uint64_t current() const;
#endif

 private:
#if PY_VERSION_HEX < 0x030C0000
  pybind11::object dict_;
#else
  std::shared_ptr<const WatchedDict> watched_;  // none: its changes cannot be seen
#endif
};

}  // namespace torch_lazy
