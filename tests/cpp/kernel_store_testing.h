// What the tests of the kernel store share: a folder of their own, other users, other processes.
#pragma once

#include "backends/cpu/kernel_store.h"
#include "executor_testing.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

namespace torch_lazy::testing {

namespace fs = std::filesystem;

constexpr int64_t kPlenty = 1 << 20;
constexpr int64_t kAround = 48;  // bytes of a file besides key and payload
constexpr uid_t kNobody = 65534;

inline std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

inline void write_file(const fs::path& path, const std::string& contents) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << contents;
  ASSERT_EQ(chmod(path.c_str(), 0600), 0);
}

inline mode_t mode_of(const fs::path& path) {
  struct stat status{};
  EXPECT_EQ(lstat(path.c_str(), &status), 0) << path;
  return status.st_mode & 07777;
}

inline void set_age(const fs::path& path, int64_t seconds) {
  const timespec then{time(nullptr) - seconds, 0};
  const timespec times[] = {then, then};
  ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), times, AT_SYMLINK_NOFOLLOW), 0);
}

inline int64_t age_of(const fs::path& path) {
  struct stat status{};
  EXPECT_EQ(lstat(path.c_str(), &status), 0) << path;
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);  // time() may be a little behind the clock of files
  return now.tv_sec - status.st_mtim.tv_sec;
}

/// A payload that tells whose it is.
inline std::string payload(const std::string& key, size_t size) {
  std::string text;
  while (text.size() < size) {
    text += key + ".";
  }
  text.resize(size);
  return text;
}

/// Counts the warnings of this thread while it lives.
class Warnings : public c10::WarningHandler {
 public:
  Warnings() : guard_(this) {}
  void process(const c10::Warning& warning) override {
    ++count;
    last = warning.msg();
  }

  int count = 0;
  std::string last;

 private:
  c10::WarningUtils::WarningHandlerGuard guard_;
};

/// Another user while it lives, if this one is root, for whom permissions mean nothing.
class WithoutPrivileges {
 public:
  WithoutPrivileges() : root_(geteuid() == 0) {
    if (root_) {
      EXPECT_EQ(seteuid(kNobody), 0);
    }
  }
  ~WithoutPrivileges() {
    if (root_) {
      EXPECT_EQ(seteuid(0), 0);
    }
  }
  WithoutPrivileges(const WithoutPrivileges&) = delete;
  WithoutPrivileges& operator=(const WithoutPrivileges&) = delete;

 private:
  const bool root_;
};

class KernelStoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "torch_lazy_store_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    base = pattern;
    folder = base / "kernels";
  }
  void TearDown() override { fs::remove_all(base); }

  KernelStore open(int64_t bytes = kPlenty) const { return {folder.string(), bytes}; }

  /// Names with this ending, in order.
  std::vector<std::string> names(const std::string& ending = "") const {
    std::vector<std::string> found;
    if (fs::exists(folder)) {
      for (const auto& entry : fs::directory_iterator(folder)) {
        if (entry.path().string().ends_with(ending)) {
          found.push_back(entry.path().filename());
        }
      }
    }
    std::sort(found.begin(), found.end());
    return found;
  }

  /// Stores something under a key; its file.
  fs::path file_of(KernelStore& store, const std::string& key, const std::string& bytes) const {
    const std::vector<std::string> before = names();
    store.put(key, bytes);
    for (const std::string& name : names()) {
      if (std::find(before.begin(), before.end(), name) == before.end()) {
        return folder / name;
      }
    }
    ADD_FAILURE() << "nothing was stored";
    return folder / "none";
  }

  int64_t total_bytes() const {
    int64_t total = 0;
    for (const std::string& name : names()) {
      std::error_code gone;
      const auto size = fs::file_size(folder / name, gone);
      total += gone ? 0 : static_cast<int64_t>(size);
    }
    return total;
  }

  fs::path base;
  fs::path folder;
};

/// Runs a function in a forked child, which is given up after a while; its exit status.
inline pid_t start_child(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    _exit(body());
  }
  return child;
}

inline int finish_child(pid_t child) {
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace torch_lazy::testing
