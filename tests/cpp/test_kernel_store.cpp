// The store of compiled kernels: what it finds again, what it does not trust, and where it lies.
#include "kernel_store_testing.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <random>
#include <set>
#include <thread>

namespace torch_lazy::testing {
namespace {

// ---- Round trip

TEST_F(KernelStoreTest, FindsWhatWasPut) {
  const int64_t hits = count("KernelCacheHit");
  const int64_t misses = count("KernelCacheMiss");
  const int64_t writes = count("KernelCacheWrite");
  Warnings warnings;
  KernelStore store = open();
  EXPECT_EQ(store.find("key"), std::nullopt);
  EXPECT_FALSE(fs::exists(folder)) << "looking makes no folder";

  const std::string binary("\0\xff machine \0 code\n", 18);
  store.put("key", binary);
  store.put(std::string("key\0", 4), "other");
  store.put("", "of the empty key");
  store.put("empty", "");
  const std::string large = payload("large", 300000);
  store.put("large", large);
  EXPECT_EQ(store.find("key"), binary);
  KernelStore next = open();
  EXPECT_EQ(next.find("key"), binary);
  EXPECT_EQ(next.find(std::string("key\0", 4)), "other");
  EXPECT_EQ(next.find(""), "of the empty key");
  EXPECT_EQ(next.find("empty"), "");
  EXPECT_EQ(next.find("large"), large);
  EXPECT_EQ(next.find("kez"), std::nullopt);
  EXPECT_EQ(count("KernelCacheHit") - hits, 6);
  EXPECT_EQ(count("KernelCacheMiss") - misses, 2);
  EXPECT_EQ(count("KernelCacheWrite") - writes, 5);
  EXPECT_EQ(warnings.count, 0);
}

TEST_F(KernelStoreTest, LaterBytesReplaceEarlierOnes) {
  KernelStore store = open();
  store.put("key", "first");
  store.put("key", "second");
  EXPECT_EQ(store.find("key"), "second");
  EXPECT_EQ(names().size(), 1u);
}

TEST_F(KernelStoreTest, MakesTheWholePathForThisUserAlone) {
  const mode_t before = umask(0);
  folder = base / "a" / "b" / "kernels";
  KernelStore store = open();
  const fs::path file = file_of(store, "key", "bytes");
  umask(before);
  for (const fs::path& made : {base / "a", base / "a" / "b", folder}) {
    EXPECT_EQ(mode_of(made), 0700u) << made;
  }
  EXPECT_EQ(mode_of(file), 0600u);
  EXPECT_EQ(names().size(), 1u) << "no temporary file is left";
}

TEST_F(KernelStoreTest, WorksThroughALinkToAFolder) {
  ASSERT_EQ(mkdir((base / "disk").c_str(), 0700), 0);
  fs::create_symlink(base / "disk", folder);
  KernelStore store = open();
  store.put("key", "bytes");
  EXPECT_EQ(store.find("key"), "bytes");
  EXPECT_EQ(std::distance(fs::directory_iterator(base / "disk"), {}), 1);
}

TEST_F(KernelStoreTest, GoesOnWhenTheFolderWasRemoved) {
  Warnings warnings;
  KernelStore store = open();
  store.put("key", "bytes");
  fs::remove_all(folder);
  EXPECT_EQ(store.find("key"), std::nullopt);
  store.put("key", "again");
  EXPECT_EQ(store.find("key"), "again");
  EXPECT_EQ(warnings.count, 0);
}

TEST_F(KernelStoreTest, KeepsNoFileOpen) {
  auto open_files = [] { return std::distance(fs::directory_iterator("/proc/self/fd"), {}); };
  KernelStore store = open(1000);
  const auto before = open_files();
  for (int i = 0; i < 20; ++i) {
    const std::string key = std::to_string(i);
    const fs::path file = file_of(store, key, payload(key, 100));
    EXPECT_TRUE(store.find(key));
    write_file(file, "damaged");
    Warnings quiet;
    EXPECT_FALSE(store.find(key));
    store.put(key, payload(key, 100));
  }
  EXPECT_EQ(open_files(), before);
}

// ---- What is not trusted

TEST_F(KernelStoreTest, AFileUnderTheNameOfAnotherKeyIsNoHit) {
  KernelStore store = open();
  const fs::path first = file_of(store, "first", "bytes of the first");
  const fs::path second = file_of(store, "second", "bytes of the second");
  write_file(second, read_file(first));
  EXPECT_EQ(store.find("second"), std::nullopt);
  store.put("second", "bytes of the second");
  EXPECT_EQ(store.find("second"), "bytes of the second");
  EXPECT_EQ(store.find("first"), "bytes of the first");
}

TEST_F(KernelStoreTest, NoChangedBitIsOverlooked) {
  KernelStore store = open();
  const std::string key = "the text of a kernel";
  const fs::path file = file_of(store, key, "its machine code");
  const std::string good = read_file(file);
  ASSERT_EQ(good.size(), kAround + key.size() + 16);
  Warnings warnings;
  const int64_t damaged = count("KernelCacheDamaged");
  for (size_t at = 0; at < good.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ (1 << bit));
      write_file(file, bad);
      EXPECT_EQ(store.find(key), std::nullopt) << "byte " << at << ", bit " << bit;
      EXPECT_FALSE(fs::exists(file)) << "byte " << at << ", bit " << bit;
    }
  }
  EXPECT_EQ(count("KernelCacheDamaged") - damaged, static_cast<int64_t>(good.size() * 8));
  EXPECT_EQ(warnings.count, 1);
  EXPECT_NE(warnings.last.find(file.string()), std::string::npos) << warnings.last;
  write_file(file, good);
  EXPECT_EQ(store.find(key), "its machine code");
}

TEST_F(KernelStoreTest, NoOtherLengthIsAccepted) {
  KernelStore store = open();
  const fs::path file = file_of(store, "key", "its machine code");
  const std::string good = read_file(file);
  Warnings quiet;
  for (size_t size = 0; size < good.size() + 40; ++size) {
    if (size != good.size()) {
      std::string bad = good;
      bad.resize(size);
      write_file(file, bad);
      EXPECT_EQ(store.find("key"), std::nullopt) << size;
      EXPECT_FALSE(fs::exists(file)) << size;
    }
  }
}

TEST_F(KernelStoreTest, WildContentsAreNoHit) {
  KernelStore store = open();
  const fs::path file = file_of(store, "key", "its machine code");
  const std::string good = read_file(file);
  Warnings quiet;
  std::mt19937 random(7);
  auto below = [&](size_t limit) { return random() % limit; };
  for (int round = 0; round < 2000; ++round) {
    std::string bad = good;
    for (size_t changes = 1 + below(12); changes > 0; --changes) {
      switch (below(5)) {
        case 0:
          bad[below(bad.size())] = static_cast<char>(random());
          break;
        case 1:  // a number among the sizes
          bad.replace(8 * below(4), 8, std::string(8, static_cast<char>(below(3) * 127)));
          break;
        case 2:
          bad.erase(below(bad.size()), below(9));
          break;
        case 3:
          bad.insert(below(bad.size()), std::string(below(9), static_cast<char>(random())));
          break;
        default:
          std::swap(bad[below(bad.size())], bad[below(bad.size())]);
      }
      bad.resize(std::max<size_t>(bad.size(), 40));
    }
    if (bad == good) {
      continue;
    }
    write_file(file, bad);
    ASSERT_EQ(store.find("key"), std::nullopt) << round;
  }
}

TEST_F(KernelStoreTest, AHugeForeignFileIsNotReadIntoMemory) {
  KernelStore store = open();
  const fs::path file = file_of(store, "key", "bytes");
  ASSERT_EQ(truncate(file.c_str(), int64_t{1} << 42), 0);
  Warnings quiet;
  EXPECT_EQ(store.find("key"), std::nullopt);
  EXPECT_FALSE(fs::exists(file));
}

TEST_F(KernelStoreTest, ALinkIsNotFollowed) {
  KernelStore store = open();
  const fs::path file = file_of(store, "key", "bytes");
  const fs::path elsewhere = base / "elsewhere";
  fs::rename(file, elsewhere);
  fs::create_symlink(elsewhere, file);
  Warnings warnings;
  EXPECT_EQ(store.find("key"), std::nullopt);
  EXPECT_EQ(warnings.count, 1);
  EXPECT_FALSE(fs::is_symlink(file));
  EXPECT_TRUE(fs::exists(elsewhere));

  fs::create_symlink(elsewhere, file);
  const std::string before = read_file(elsewhere);
  store.put("key", "new bytes");
  EXPECT_EQ(read_file(elsewhere), before) << "a link is replaced, not written through";
  EXPECT_EQ(store.find("key"), "new bytes");
}

TEST_F(KernelStoreTest, OnlyPlainFilesAreRead) {
  KernelStore store = open();
  const fs::path file = file_of(store, "key", "bytes");
  const int64_t damaged = count("KernelCacheDamaged");
  Warnings quiet;

  fs::remove(file);
  ASSERT_EQ(mkfifo(file.c_str(), 0600), 0);
  EXPECT_EQ(store.find("key"), std::nullopt);  // and does not wait for a writer
  EXPECT_FALSE(fs::exists(file));

  const int socket = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  ASSERT_LT(file.string().size(), sizeof(address.sun_path));
  file.string().copy(address.sun_path, sizeof(address.sun_path) - 1);
  ASSERT_EQ(bind(socket, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  close(socket);
  EXPECT_EQ(store.find("key"), std::nullopt);
  EXPECT_FALSE(fs::exists(file));

  fs::create_directory(file);
  EXPECT_EQ(store.find("key"), std::nullopt);
  store.put("key", "bytes");
  EXPECT_EQ(names().size(), 1u) << "the temporary file is removed";
  EXPECT_EQ(count("KernelCacheDamaged") - damaged, 3);
}

TEST_F(KernelStoreTest, AFileThatOthersMayWriteIsNotRead) {
  for (mode_t mode : {0620u, 0602u, 0666u}) {
    KernelStore store = open();
    const fs::path file = file_of(store, "key", "bytes");
    Warnings warnings;
    ASSERT_EQ(chmod(file.c_str(), mode), 0);
    EXPECT_EQ(store.find("key"), std::nullopt) << mode;
    EXPECT_EQ(warnings.count, 1);
    EXPECT_FALSE(fs::exists(file)) << mode;
  }
  KernelStore store = open();
  const fs::path file = file_of(store, "key", "bytes");
  ASSERT_EQ(chmod(file.c_str(), 0644), 0);
  EXPECT_EQ(store.find("key"), "bytes") << "others may read it";
}

TEST_F(KernelStoreTest, AFileOfAnotherUserIsNotRead) {
  if (geteuid() != 0) {
    GTEST_SKIP() << "only root can give a file away";
  }
  KernelStore store = open();
  const fs::path file = file_of(store, "key", "bytes");
  ASSERT_EQ(chown(file.c_str(), kNobody, kNobody), 0);
  Warnings warnings;
  EXPECT_EQ(store.find("key"), std::nullopt);
  EXPECT_EQ(warnings.count, 1);
  EXPECT_TRUE(fs::exists(file)) << "it is not ours to remove";
  store.put("key", "ours");
  EXPECT_EQ(store.find("key"), "ours");
}

TEST_F(KernelStoreTest, AFolderThatOthersMayWriteIsNotUsed) {
  for (mode_t mode : {0720u, 0702u, 01777u}) {
    KernelStore store = open();
    store.put("key", "bytes");
    ASSERT_EQ(chmod(folder.c_str(), mode), 0);
    Warnings warnings;
    EXPECT_EQ(store.find("key"), std::nullopt) << mode;
    store.put("other", "bytes");
    EXPECT_EQ(names().size(), 1u) << mode;
    EXPECT_EQ(warnings.count, 1) << mode;
    EXPECT_NE(warnings.last.find("TORCH_LAZY_CACHE_DIR"), std::string::npos) << warnings.last;
    ASSERT_EQ(chmod(folder.c_str(), 0755), 0);
    EXPECT_EQ(store.find("key"), "bytes");
  }
}

TEST_F(KernelStoreTest, AFolderOfAnotherUserIsNotUsed) {
  if (geteuid() != 0) {
    GTEST_SKIP() << "only root can give a folder away";
  }
  KernelStore store = open();
  store.put("key", "bytes");
  ASSERT_EQ(chown(folder.c_str(), kNobody, kNobody), 0);
  Warnings warnings;
  EXPECT_EQ(store.find("key"), std::nullopt);
  store.put("other", "bytes");
  EXPECT_EQ(names().size(), 1u);
  EXPECT_EQ(warnings.count, 1);
}

// ---- The store of the settings

/// Another value of an environment variable while it lives.
class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name)) {
      before_ = before;
    }
    set(value);
  }
  ~Environment() { set(before_ ? before_->c_str() : nullptr); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  void set(const char* value) { value ? setenv(name_, value, 1) : unsetenv(name_); }

  const char* name_;
  std::optional<std::string> before_;
};

TEST(KernelStoreFolder, IsWhatTheSettingSays) {
  Environment home("HOME", "/home/somebody");
  Environment caches("XDG_CACHE_HOME", "/caches");
  EXPECT_EQ(kernel_store_folder("/some/folder"), "/some/folder");
  EXPECT_EQ(kernel_store_folder("some/folder"), (fs::current_path() / "some/folder").string());
  EXPECT_EQ(kernel_store_folder(""), "");
  EXPECT_EQ(kernel_store_folder("off"), "");
  EXPECT_EQ(kernel_store_folder("auto"), "/caches/torch_lazy");
  for (const char* none : {static_cast<const char*>(nullptr), "", "relative"}) {
    Environment without("XDG_CACHE_HOME", none);
    EXPECT_EQ(kernel_store_folder("auto"), "/home/somebody/.cache/torch_lazy");
    Environment homeless("HOME", none);
    const std::string found = kernel_store_folder("auto");
    EXPECT_TRUE(found.empty() || found.ends_with("/.cache/torch_lazy")) << found;
    EXPECT_EQ(found.find("relative"), std::string::npos);
  }
}

TEST_F(KernelStoreTest, TheSettingsChooseTheStore) {
  Setting bytes("TORCH_LAZY_CACHE_BYTES", "100000");
  Setting where("TORCH_LAZY_CACHE_DIR", folder.string());
  KernelStore& first = kernel_store();
  first.put("key", "bytes");
  EXPECT_EQ(names().size(), 1u);
  EXPECT_EQ(&kernel_store(), &first);
  {
    Setting other("TORCH_LAZY_CACHE_DIR", (base / "other").string());
    EXPECT_EQ(kernel_store().find("key"), std::nullopt);
  }
  for (const auto& [name, value] :
       {std::pair("TORCH_LAZY_CACHE_DIR", ""), std::pair("TORCH_LAZY_CACHE_DIR", "off"),
        std::pair("TORCH_LAZY_CACHE_BYTES", "0")}) {
    Setting off(name, value);
    const int64_t misses = count("KernelCacheMiss");
    kernel_store().put("second", "bytes");
    EXPECT_EQ(kernel_store().find("key"), std::nullopt);
    EXPECT_EQ(count("KernelCacheMiss"), misses);
  }
  EXPECT_EQ(names().size(), 1u);
  EXPECT_EQ(&kernel_store(), &first);
  EXPECT_EQ(kernel_store().find("key"), "bytes");
}

TEST_F(KernelStoreTest, ManyThreadsGetTheSameStore) {
  Setting where("TORCH_LAZY_CACHE_DIR", folder.string());
  std::vector<KernelStore*> stores(4);
  std::vector<std::thread> threads;
  for (KernelStore*& store : stores) {
    threads.emplace_back([&store] { store = &kernel_store(); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(std::set<KernelStore*>(stores.begin(), stores.end()).size(), 1u);
}

}  // namespace
}  // namespace torch_lazy::testing
