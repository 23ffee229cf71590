// What stands behind backend(): PyTorch's kernels, and a plug-in in front of them if there is one.
#pragma once

#include <torch_lazy/backend.h>

#include <memory>
#include <string>

namespace torch_lazy {

/// Called once, when the library is loaded, by the backend that can execute every node.
void register_base_backend(Backend& (*factory)());

/// That backend.
Backend& base_backend();

/// Data in the real device's memory, wherever it is now.
c10::Storage to_real_memory(const c10::Storage& data);

/// Opens a shared library, checks its versions and makes its backend. It is never closed.
std::shared_ptr<Backend> open_plugin(const std::string& path);

}  // namespace torch_lazy
