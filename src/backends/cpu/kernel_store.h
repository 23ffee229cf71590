// Compiled kernels on disk, so that the next process finds what this one compiled. The folder may
// be shared by any number of threads, forked children and other processes of the same user.
#pragma once

#include <torch_lazy/metrics.h>

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace torch_lazy {

/// Machine code kept on disk between processes. It is executed, so what others could have written
/// is not read. No error leaves it: what cannot be read is not there, what cannot be written is not
/// kept, and of each kind of trouble there is one warning.
class KernelStore {
 public:
  /// At most `bytes` are kept in the folder, which is made when something is put into it. Without a
  /// name, or with no bytes to keep, nothing is stored or found.
  KernelStore(std::string folder, int64_t bytes);

  /// What was stored under a key, or nothing. The key is the full text of what was compiled:
  /// kernel, features of the target, version.
  std::optional<std::string> find(std::string_view key);

  void put(std::string_view key, std::string_view bytes);

 private:
  class Descriptor;

  bool off() const { return folder_.empty() || bytes_ <= 0; }
  Descriptor open_folder(bool make);
  std::optional<std::string> read(std::string_view key);
  void write(std::string_view key, std::string_view bytes);
  void discard(int folder, const std::string& name, const std::string& reason);
  void make_room(int folder, int64_t size);
  void sweep(int folder, int64_t size);

  const std::string folder_;
  const int64_t bytes_;

  // Nothing here is a lock: a child forked while another thread held it would wait for ever.
  std::atomic<int64_t> room_{0};   // how much may be written before the folder is looked through
  std::atomic<pid_t> sweeper_{0};  // the process one of whose threads does that
  std::atomic<bool> folder_refused_{false};
  std::atomic<bool> damage_seen_{false};
  std::atomic<bool> write_failed_{false};

  metrics::Counter& hits_;
  metrics::Counter& misses_;
  metrics::Counter& writes_;
  metrics::Counter& evicted_;
  metrics::Counter& damaged_;
};

/// The folder that a value of TORCH_LAZY_CACHE_DIR stands for, as an absolute path; empty: none.
std::string kernel_store_folder(const std::string& setting);

/// The store that the settings describe now. It lives as long as the process.
KernelStore& kernel_store();

}  // namespace torch_lazy
