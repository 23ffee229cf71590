// The store of compiled kernels stays small, is shared by threads and processes, and nothing around
// it, from a full disk to a fork at the wrong moment, stops the program.
#include "kernel_store_testing.h"

#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include <atomic>
#include <csignal>
#include <random>
#include <thread>

namespace torch_lazy::testing {
namespace {

// ---- What cannot be written

TEST_F(KernelStoreTest, AReadOnlyFolderIsReadOnly) {
  ASSERT_EQ(mkdir(folder.c_str(), 0700), 0);
  if (geteuid() == 0) {
    ASSERT_EQ(chown(base.c_str(), kNobody, kNobody), 0);
    ASSERT_EQ(chown(folder.c_str(), kNobody, kNobody), 0);
  }
  {
    WithoutPrivileges user;
    Warnings warnings;
    KernelStore store = open();
    store.put("key", "bytes");
    ASSERT_EQ(chmod(folder.c_str(), 0500), 0);
    store.put("other", "bytes");
    store.put("third", "bytes");
    EXPECT_EQ(store.find("key"), "bytes");
    EXPECT_EQ(store.find("other"), std::nullopt);
    EXPECT_EQ(warnings.count, 1);
    ASSERT_EQ(chmod(folder.c_str(), 0700), 0);
    store.put("other", "bytes");
    EXPECT_EQ(store.find("other"), "bytes");
  }
  EXPECT_EQ(names().size(), 2u);
}

TEST_F(KernelStoreTest, AFolderThatCannotBeMadeIsGivenUp) {
  if (geteuid() == 0) {
    ASSERT_EQ(chown(base.c_str(), kNobody, kNobody), 0);
  }
  WithoutPrivileges user;
  ASSERT_EQ(chmod(base.c_str(), 0500), 0);
  Warnings warnings;
  KernelStore store = open();
  store.put("key", "bytes");
  store.put("key", "bytes");
  EXPECT_EQ(store.find("key"), std::nullopt);
  EXPECT_EQ(warnings.count, 1);
  EXPECT_NE(warnings.last.find("Permission denied"), std::string::npos) << warnings.last;
  ASSERT_EQ(chmod(base.c_str(), 0700), 0);
}

TEST_F(KernelStoreTest, AFileInThePlaceOfTheFolderIsLeftAlone) {
  write_file(folder, "somebody's");
  Warnings warnings;
  KernelStore store = open();
  store.put("key", "bytes");
  EXPECT_EQ(store.find("key"), std::nullopt);
  EXPECT_EQ(read_file(folder), "somebody's");
  KernelStore below((folder / "deeper").string(), kPlenty);
  below.put("key", "bytes");
  EXPECT_EQ(below.find("key"), std::nullopt);
  EXPECT_EQ(warnings.count, 2);
}

TEST_F(KernelStoreTest, TheLimitOnFileSizesDoesNotEndTheProgram) {
  const int result = finish_child(start_child([&] {
    std::signal(SIGXFSZ, SIG_DFL);
    const rlimit small{1000, 1000};
    if (setrlimit(RLIMIT_FSIZE, &small) != 0) {
      return 1;
    }
    Warnings warnings;
    KernelStore store = open();
    store.put("large", payload("large", 2000));
    store.put("small", "bytes");
    return !store.find("large") && store.find("small") == "bytes" && warnings.count == 1 ? 0 : 2;
  }));
  EXPECT_EQ(result, 0);
  EXPECT_EQ(names().size(), 1u);
}

TEST_F(KernelStoreTest, AFullDiskIsNoError) {
  ASSERT_EQ(mkdir(folder.c_str(), 0700), 0);
  const int result = finish_child(start_child([&] {
    if (unshare(CLONE_NEWNS) != 0 || mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, "") != 0 ||
        mount("none", folder.c_str(), "tmpfs", 0, "size=64k,mode=0700") != 0) {
      return 77;
    }
    Warnings warnings;
    KernelStore store = open();
    for (int i = 0; i < 20; ++i) {
      const std::string key = std::to_string(i);
      store.put(key, payload(key, 10000));
    }
    int hits = 0;
    for (int i = 0; i < 20; ++i) {
      const std::string key = std::to_string(i);
      if (std::optional<std::string> bytes = store.find(key)) {
        if (*bytes != payload(key, 10000)) {
          return 1;
        }
        ++hits;
      }
    }
    const bool clean = names().size() == static_cast<size_t>(hits);
    return clean && hits > 2 && hits < 7 && warnings.count == 1 ? 0 : 2;
  }));
  if (result == 77) {
    GTEST_SKIP() << "no right to mount a small disk";
  }
  EXPECT_EQ(result, 0);
}

TEST_F(KernelStoreTest, WarningsThatAreErrorsStayInside) {
  class Strict : public c10::WarningHandler {
    void process(const c10::Warning& warning) override { throw std::runtime_error(warning.msg()); }
  } strict;
  c10::WarningUtils::WarningHandlerGuard guard(&strict);
  KernelStore store = open();
  const fs::path file = file_of(store, "key", "bytes");
  write_file(file, "damaged");
  EXPECT_EQ(store.find("key"), std::nullopt);
  ASSERT_EQ(chmod(folder.c_str(), 0777), 0);
  EXPECT_NO_THROW(store.put("key", "bytes"));
}

// ---- How much is kept

TEST_F(KernelStoreTest, WhatWasUsedLongestAgoGoesFirst) {
  const int64_t each = 1000;
  auto bytes = [&](const std::string& key) { return payload(key, each - kAround - key.size()); };
  KernelStore store = open(10 * each);
  const int64_t evicted = count("KernelCacheEvicted");
  for (int i = 0; i < 10; ++i) {
    const std::string key = "k" + std::to_string(i);
    set_age(file_of(store, key, bytes(key)), 100000 - i * 5000);
  }
  EXPECT_EQ(count("KernelCacheEvicted"), evicted);
  EXPECT_EQ(names().size(), 10u);
  EXPECT_TRUE(store.find("k0"));  // now the one used last

  store.put("new", bytes("new"));
  EXPECT_EQ(total_bytes(), 8 * each);
  EXPECT_EQ(count("KernelCacheEvicted") - evicted, 3);
  for (const char* gone : {"k1", "k2", "k3"}) {
    EXPECT_FALSE(store.find(gone)) << gone;
  }
  for (const char* kept : {"k0", "k4", "k9", "new"}) {
    EXPECT_EQ(store.find(kept), bytes(kept)) << kept;
  }
}

TEST_F(KernelStoreTest, AUseIsNotedOnceAnHour) {
  KernelStore store = open();
  const fs::path file = file_of(store, "key", "bytes");
  set_age(file, 1800);
  EXPECT_TRUE(store.find("key"));
  EXPECT_GE(age_of(file), 1800);
  set_age(file, 7200);
  EXPECT_TRUE(store.find("key"));
  EXPECT_LT(age_of(file), 60);
  set_age(file, -7200);  // a clock was wrong
  EXPECT_TRUE(store.find("key"));
  EXPECT_GE(age_of(file), 0);
}

TEST_F(KernelStoreTest, StaysBelowItsLimit) {
  const int64_t limit = 20000;
  KernelStore store = open(limit);
  std::mt19937 random(3);
  for (int i = 0; i < 300; ++i) {
    const std::string key = std::to_string(i);
    const size_t size = random() % 3000;
    store.put(key, payload(key, size));
    ASSERT_LE(total_bytes(), limit);
    ASSERT_EQ(store.find(key), payload(key, size)) << "what was just put is there";
  }
  EXPECT_GT(total_bytes(), limit / 2);
}

TEST_F(KernelStoreTest, KeepsNothingLargerThanItsLimit) {
  KernelStore store = open(1000);
  store.put("small", "bytes");
  store.put("large", payload("large", 1000 - kAround - 5 + 1));
  EXPECT_FALSE(store.find("large"));
  EXPECT_TRUE(store.find("small")) << "nothing had to go for it";
  store.put("large", payload("large", 1000 - kAround - 5));
  EXPECT_TRUE(store.find("large"));
  EXPECT_EQ(total_bytes(), 1000);
}

TEST_F(KernelStoreTest, ALaterProcessCountsWhatIsThere) {
  {
    KernelStore large = open();
    for (int i = 0; i < 50; ++i) {
      large.put(std::to_string(i), payload("x", 1000));
    }
  }
  KernelStore store = open(10000);
  store.put("key", "bytes");
  EXPECT_LE(total_bytes(), 8000);
  EXPECT_TRUE(store.find("key"));
}

TEST_F(KernelStoreTest, NoticesWhatOthersWrite) {
  const int64_t limit = 100000;
  KernelStore store = open(limit);
  KernelStore other = open(limit);
  for (int i = 0; i < 200; ++i) {
    store.put("a" + std::to_string(i), payload("a", 1000));
    other.put("b" + std::to_string(i), payload("b", 1000));
    ASSERT_LE(total_bytes(), limit + limit / 8);
  }
}

TEST_F(KernelStoreTest, RemovesWhatCrashedWritersLeft) {
  KernelStore store = open(2000);
  const fs::path file = file_of(store, "key", "bytes");
  const std::string name = file.stem();
  const fs::path left = folder / (name + ".tmp");
  const fs::path active = folder / (std::string(32, 'a') + ".tmp");
  const fs::path notes = folder / "notes.tmp";
  const fs::path plans = folder / (std::string(32, 'g') + ".kernel");
  const fs::path copy = folder / (name + ".old.kernel");
  for (const fs::path& path : {left, active, notes, plans, copy}) {
    write_file(path, "written by somebody");
    set_age(path, 7200);
  }
  set_age(active, 600);

  KernelStore next = open(2000);
  for (int i = 0; i < 20; ++i) {
    next.put(std::to_string(i), payload("x", 500));
  }
  EXPECT_FALSE(fs::exists(left));
  EXPECT_TRUE(fs::exists(active)) << "somebody may be writing it";
  for (const fs::path& path : {notes, plans, copy}) {
    EXPECT_TRUE(fs::exists(path)) << "not a file of ours: " << path;
  }
}

// ---- Many at once

/// Puts and finds at random in a store that is too small for all; what is found must be right.
bool use(KernelStore& store, unsigned seed, int rounds) {
  std::mt19937 random(seed);
  for (int i = 0; i < rounds; ++i) {
    const std::string key = "key " + std::to_string(random() % 60);
    const std::string bytes = payload(key, 200 + 50 * key.size());
    if (random() % 2) {
      store.put(key, bytes);
    } else if (std::optional<std::string> found = store.find(key); found && *found != bytes) {
      return false;
    }
  }
  return true;
}

TEST_F(KernelStoreTest, ManyThreadsAndProcessesShareAFolder) {
  const int64_t limit = 20000;
  const int64_t damaged = count("KernelCacheDamaged");
  std::vector<pid_t> children;
  for (unsigned seed : {101u, 102u, 103u}) {
    children.push_back(start_child([&, seed] {
      Warnings warnings;
      KernelStore store = open(limit);
      return use(store, seed, 1500) && warnings.count == 0 && count("KernelCacheDamaged") == damaged
                 ? 0
                 : 1;
    }));
  }
  KernelStore store = open(limit);
  std::atomic<int> right{0};
  std::atomic<int> warned{0};
  std::vector<std::thread> threads;
  for (unsigned seed = 0; seed < 4; ++seed) {
    threads.emplace_back([&, seed] {
      Warnings warnings;
      right += use(store, seed, 1000);
      warned += warnings.count;
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (pid_t child : children) {
    EXPECT_EQ(finish_child(child), 0);
  }
  EXPECT_EQ(right, 4);
  EXPECT_EQ(warned, 0);
  EXPECT_EQ(count("KernelCacheDamaged"), damaged);
  EXPECT_TRUE(names(".tmp").empty());
  store.put("last", "bytes");
  EXPECT_LE(total_bytes(), limit);
}

TEST_F(KernelStoreTest, AChildForkedAtAnyMomentCanUseIt) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "its allocator has locks that a child may find taken";
#endif
  KernelStore store = open(20000);
  std::atomic<bool> stop{false};
  std::atomic<bool> right{true};
  std::vector<std::thread> threads;
  for (unsigned seed = 0; seed < 2; ++seed) {
    threads.emplace_back([&, seed] {
      for (unsigned round = 0; !stop; ++round) {
        if (!use(store, 1000 * seed + round, 20)) {
          right = false;
        }
      }
    });
  }
  for (unsigned i = 0; i < 20; ++i) {
    EXPECT_EQ(finish_child(start_child([&] {
                if (!use(store, i, 30)) {
                  return 1;
                }
                // Enough for a sweep, which the child must do itself.
                for (int more = 0; more < 30; ++more) {
                  store.put("child " + std::to_string(more), payload("child", 1000));
                }
                return total_bytes() < 40000 ? 0 : 2;
              })),
              0);
  }
  stop = true;
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_TRUE(right);
}

TEST_F(KernelStoreTest, AWriterThatIsKilledLeavesNothingWrong) {
  for (unsigned i = 0; i < 20; ++i) {
    const pid_t child = start_child([&] {
      KernelStore store = open(20000);
      return use(store, i, 1000000) ? 0 : 1;
    });
    usleep(2000 + 1000 * i);
    kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
  }
  Warnings warnings;
  KernelStore store = open(20000);
  EXPECT_TRUE(use(store, 99, 500));
  EXPECT_EQ(warnings.count, 0);
  EXPECT_GT(names(".kernel").size(), 0u);
}

}  // namespace
}  // namespace torch_lazy::testing
