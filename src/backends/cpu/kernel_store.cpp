// The files of the kernel store: their form, whether to trust them, and room for new ones.
#include "backends/cpu/kernel_store.h"

#include "base/hash.h"
#include "base/settings.h"

#include <c10/util/Exception.h>

#include <dirent.h>
#include <fcntl.h>
#include <pwd.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

namespace torch_lazy {
namespace {

constexpr time_t kHour = 3600;

constexpr std::string_view kStored = ".kernel";
constexpr std::string_view kTemporary = ".tmp";  // being written, or left behind by a crash

// ---- The form of a file: header, key, bytes, checksum of all that

struct Header {
  std::array<char, 8> magic{'T', 'L', 'k', 'e', 'r', 'n', 'e', 'l'};
  uint64_t version = 1;  // of this form; files of another one have other names
  uint64_t key_size = 0;
  uint64_t bytes_size = 0;

  /// Whether it is the header of a file of this size.
  bool fits(uint64_t file_size) const {
    const Header expected;
    if (magic != expected.magic || version != expected.version ||
        file_size < sizeof(Header) + sizeof(Hash)) {
      return false;
    }
    const uint64_t rest = file_size - sizeof(Header) - sizeof(Hash);
    return key_size <= rest && bytes_size == rest - key_size;
  }
};

uint64_t packed_size(std::string_view key, std::string_view bytes) {
  return sizeof(Header) + key.size() + bytes.size() + sizeof(Hash);
}

void append(std::string& text, const void* data, size_t size) {
  text.append(static_cast<const char*>(data), size);
}

std::string pack(std::string_view key, std::string_view bytes) {
  Header header;
  header.key_size = key.size();
  header.bytes_size = bytes.size();
  std::string contents;
  contents.reserve(packed_size(key, bytes));
  append(contents, &header, sizeof(header));
  contents += key;
  contents += bytes;
  const Hash checksum = hash_bytes(contents, header.version);
  append(contents, checksum.data(), sizeof(checksum));
  return contents;
}

bool checksum_is_right(std::string_view contents) {
  const std::string_view summed = contents.substr(0, contents.size() - sizeof(Hash));
  const Hash checksum = hash_bytes(summed, Header().version);
  return std::memcmp(checksum.data(), contents.data() + summed.size(), sizeof(checksum)) == 0;
}

// ---- Names

std::string name_of(const Hash& hash, std::string_view ending) {
  std::array<char, 33> digits{};
  std::snprintf(digits.data(), digits.size(), "%016llx%016llx",
                static_cast<unsigned long long>(hash[0]), static_cast<unsigned long long>(hash[1]));
  return digits.data() + std::string(ending);
}

std::string stored_name(std::string_view key) {
  return name_of(hash_bytes(key, Header().version), kStored);
}

/// A name that no other thread, process or machine uses now.
std::string temporary_name() {
  static std::atomic<uint64_t> made{0};
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  const std::array<uint64_t, 4> words = {static_cast<uint64_t>(getpid()), made.fetch_add(1),
                                         static_cast<uint64_t>(now.tv_sec),
                                         static_cast<uint64_t>(now.tv_nsec)};
  return name_of({hash_words(words), hash_words(words, 0x3c6ef372fe94f82bull)}, kTemporary);
}

/// Whether a name is one of ours; the folder may hold other things too.
bool is_name(std::string_view name, std::string_view ending) {
  return name.size() == 32 + ending.size() && name.ends_with(ending) &&
         name.find_first_not_of("0123456789abcdef") == 32;
}

// ---- System calls

std::string describe(int error) {
  return std::generic_category().message(error);
}

/// Reads up to `size` bytes, less only at the end of the file. False: the system reports an error.
bool read_from(int file, char* to, size_t size, size_t* done) {
  for (*done = 0; *done < size;) {
    const ssize_t n = ::read(file, to + *done, size - *done);
    if (n == 0) {
      break;
    }
    if (n < 0 && errno != EINTR) {
      return false;
    }
    *done += n < 0 ? 0 : static_cast<size_t>(n);
  }
  return true;
}

bool write_to(int file, std::string_view bytes) {
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && bytes.size() > limit.rlim_cur) {
    errno = EFBIG;  // writing it would end the program with a signal
    return false;
  }
  while (!bytes.empty()) {
    const ssize_t n = ::write(file, bytes.data(), bytes.size());
    if (n < 0 && errno != EINTR) {
      return false;
    }
    bytes.remove_prefix(n < 0 ? 0 : static_cast<size_t>(n));
  }
  return true;
}

/// Makes a folder and those it lies in, for this user alone.
bool make_folders(const std::string& path) {
  for (size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    if (mkdir(path.substr(0, end).c_str(), 0700) != 0 && errno != EEXIST) {
      return false;
    }
    if (end == std::string::npos) {
      return true;
    }
  }
}

/// Why what an open file or folder says cannot be trusted, or null.
const char* distrust(const struct stat& status) {
  if (status.st_uid != geteuid()) {
    return "it belongs to another user";
  }
  if (status.st_mode & (S_IWGRP | S_IWOTH)) {
    return "other users may write to it";
  }
  return nullptr;
}

template <typename... Args>
void warn_once(std::atomic<bool>& warned, const Args&... message) {
  if (!warned.exchange(true)) {
    TORCH_WARN("torch-lazy: ", message...);
  }
}

}  // namespace

/// An open file, or none. A child process that runs another program does not inherit it.
class KernelStore::Descriptor {
 public:
  Descriptor() = default;
  Descriptor(int folder, const std::string& path, int flags, mode_t mode = 0) {
    do {
      descriptor_ = openat(folder, path.c_str(), flags | O_CLOEXEC, mode);
    } while (descriptor_ < 0 && errno == EINTR);
  }
  ~Descriptor() { close(); }
  Descriptor(Descriptor&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  bool valid() const { return descriptor_ >= 0; }
  int get() const { return descriptor_; }
  int release() { return std::exchange(descriptor_, -1); }
  /// False: what was written may be lost, which some file systems say only here.
  bool close() { return !valid() || ::close(release()) == 0 || errno == EINTR; }

 private:
  int descriptor_ = -1;
};

KernelStore::KernelStore(std::string folder, int64_t bytes)
    : folder_(std::move(folder)),
      bytes_(bytes),
      hits_(metrics::counter("KernelCacheHit")),
      misses_(metrics::counter("KernelCacheMiss")),
      writes_(metrics::counter("KernelCacheWrite")),
      evicted_(metrics::counter("KernelCacheEvicted")),
      damaged_(metrics::counter("KernelCacheDamaged")) {}

std::optional<std::string> KernelStore::find(std::string_view key) {
  if (off()) {
    return std::nullopt;
  }
  try {
    if (std::optional<std::string> bytes = read(key)) {
      hits_.add();
      return bytes;
    }
  } catch (const std::exception&) {
    // No memory, or a warning that became an error: compile it again.
  }
  misses_.add();
  return std::nullopt;
}

void KernelStore::put(std::string_view key, std::string_view bytes) {
  if (off()) {
    return;
  }
  try {
    write(key, bytes);
  } catch (const std::exception&) {
    // As in find: then it is not kept.
  }
}

/// The folder, if it can be trusted. It is opened for every call: it may be removed meanwhile, and
/// a descriptor kept open would be closed by programs that become a daemon. It may be reached
/// through links, since all that counts is looked at once it is open.
KernelStore::Descriptor KernelStore::open_folder(bool make) {
  Descriptor folder(AT_FDCWD, folder_, O_RDONLY | O_DIRECTORY);
  if (!folder.valid() && errno == ENOENT) {
    if (!make) {
      return {};
    }
    if (make_folders(folder_)) {
      folder = Descriptor(AT_FDCWD, folder_, O_RDONLY | O_DIRECTORY);
    }
  }
  if (!folder.valid()) {
    warn_once(folder_refused_, "compiled kernels cannot be kept in ", folder_, ": ",
              describe(errno), ". Name another folder, or off, with TORCH_LAZY_CACHE_DIR");
    return {};
  }
  struct stat status{};
  if (fstat(folder.get(), &status) != 0) {
    return {};
  }
  if (const char* reason = distrust(status)) {
    warn_once(folder_refused_, "compiled kernels are not kept in ", folder_, ", because ", reason,
              ". Make it yours alone (chmod 700), or name another with TORCH_LAZY_CACHE_DIR");
    return {};
  }
  return folder;
}

std::optional<std::string> KernelStore::read(std::string_view key) {
  const Descriptor folder = open_folder(/*make=*/false);
  if (!folder.valid()) {
    return std::nullopt;
  }
  const std::string name = stored_name(key);
  // Not blocking: opening a pipe would wait for its writer.
  const Descriptor file(folder.get(), name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  if (!file.valid()) {
    if (errno == ELOOP || errno == EACCES || errno == ENXIO) {  // a link, not for us, a socket
      discard(folder.get(), name, describe(errno));
    }
    return std::nullopt;
  }
  struct stat status{};
  if (fstat(file.get(), &status) != 0) {
    return std::nullopt;
  }
  if (const char* reason = S_ISREG(status.st_mode) ? distrust(status) : "it is no plain file") {
    discard(folder.get(), name, reason);
    return std::nullopt;
  }

  // The header first: whatever else lies there may be too large for memory.
  Header header;
  size_t done = 0;
  if (!read_from(file.get(), reinterpret_cast<char*>(&header), sizeof(header), &done)) {
    return std::nullopt;
  }
  const auto size = static_cast<uint64_t>(status.st_size);
  if (done < sizeof(header) || !header.fits(size)) {
    discard(folder.get(), name, "it has another form or size");
    return std::nullopt;
  }
  std::string contents(size, '\0');
  std::memcpy(contents.data(), &header, sizeof(header));
  if (!read_from(file.get(), contents.data() + sizeof(header), size - sizeof(header), &done)) {
    return std::nullopt;
  }
  if (done < size - sizeof(header) || !checksum_is_right(contents)) {
    discard(folder.get(), name, "its checksum is wrong");
    return std::nullopt;
  }
  if (std::string_view(contents).substr(sizeof(header), header.key_size) != key) {
    return std::nullopt;  // another key with the same hash, which the next put replaces
  }

  // The time of change serves as the time of use. To the hour is enough.
  if (std::abs(time(nullptr) - status.st_mtim.tv_sec) > kHour) {
    futimens(file.get(), nullptr);
  }
  return contents.substr(sizeof(header) + header.key_size, header.bytes_size);
}

void KernelStore::discard(int folder, const std::string& name, const std::string& reason) {
  damaged_.add();
  struct stat status{};
  if (fstatat(folder, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 &&
      status.st_uid == geteuid()) {
    unlinkat(folder, name.c_str(), 0);
  }
  warn_once(damage_seen_, "a compiled kernel is not used, because ", reason, ": ", folder_, "/",
            name, ". Others like it are only counted (KernelCacheDamaged)");
}

void KernelStore::write(std::string_view key, std::string_view bytes) {
  const uint64_t size = packed_size(key, bytes);
  if (size > static_cast<uint64_t>(bytes_)) {
    return;
  }
  const Descriptor folder = open_folder(/*make=*/true);
  if (!folder.valid()) {
    return;
  }
  const std::string contents = pack(key, bytes);
  const std::string name = stored_name(key);
  const std::string temporary = temporary_name();
  make_room(folder.get(), static_cast<int64_t>(size));

  Descriptor file(folder.get(), temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
  const bool made = file.valid();
  if (made && write_to(file.get(), contents) && file.close() &&
      renameat(folder.get(), temporary.c_str(), folder.get(), name.c_str()) == 0) {
    writes_.add();
    return;
  }
  const int error = errno;
  if (made) {
    unlinkat(folder.get(), temporary.c_str(), 0);
  }
  warn_once(write_failed_, "compiled kernels cannot be kept in ", folder_, ": ", describe(error));
}

/// Sees to it that so many bytes more may be written. What other processes write is not known, so
/// the folder is looked through after a part of the limit, too.
void KernelStore::make_room(int folder, int64_t size) {
  if (room_.fetch_sub(size) >= size) {
    return;
  }
  // A child forked during a sweep finds its parent's id here, and takes over.
  const pid_t self = getpid();
  pid_t sweeper = sweeper_.load();
  if (sweeper == self || !sweeper_.compare_exchange_strong(sweeper, self)) {
    return;
  }
  try {
    sweep(folder, size);
  } catch (const std::exception&) {
    // No memory for the list: the next put tries again.
  }
  sweeper_ = 0;
}

/// Removes what crashed writers left, and if there is too much for so many bytes more, what was
/// used longest ago.
void KernelStore::sweep(int folder, int64_t size) {
  struct Entry {
    std::pair<time_t, int64_t> used;
    int64_t size;
    std::string name;
    auto operator<=>(const Entry&) const = default;
  };
  Descriptor opened(folder, ".", O_RDONLY | O_DIRECTORY);
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(fdopendir(opened.get()), &closedir);
  if (!listing) {
    return;
  }
  opened.release();  // now the listing's

  const time_t now = time(nullptr);
  int64_t total = size;
  std::vector<Entry> entries;
  while (const dirent* item = readdir(listing.get())) {
    const std::string name = item->d_name;
    const bool temporary = is_name(name, kTemporary);
    struct stat status{};
    if ((!temporary && !is_name(name, kStored)) ||
        fstatat(folder, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
      continue;
    }
    if (temporary && now - status.st_mtim.tv_sec > kHour) {
      unlinkat(folder, name.c_str(), 0);
      continue;
    }
    total += status.st_size;
    if (!temporary) {
      entries.push_back({{status.st_mtim.tv_sec, status.st_mtim.tv_nsec}, status.st_size, name});
    }
  }

  if (total > bytes_) {
    std::sort(entries.begin(), entries.end());
    for (const Entry& entry : entries) {
      if (total <= bytes_ / 5 * 4) {
        break;
      }
      if (unlinkat(folder, entry.name.c_str(), 0) == 0) {
        evicted_.add();
        total -= entry.size;
      } else if (errno == ENOENT) {
        total -= entry.size;  // another process was faster
      }
    }
  }
  room_ = std::min(bytes_ - total, bytes_ / 16);
}

std::string kernel_store_folder(const std::string& setting) {
  if (setting.empty() || setting == "off") {
    return "";
  }
  if (setting != "auto") {
    std::error_code error;
    return std::filesystem::absolute(setting, error).string();
  }
  const char* caches = std::getenv("XDG_CACHE_HOME");
  if (caches && caches[0] == '/') {
    return std::string(caches) + "/torch_lazy";
  }
  const char* home = std::getenv("HOME");
  if (home && home[0] == '/') {
    return std::string(home) + "/.cache/torch_lazy";
  }
  passwd user{};
  passwd* found = nullptr;
  std::array<char, 4096> buffer{};
  if (getpwuid_r(geteuid(), &user, buffer.data(), buffer.size(), &found) == 0 && found &&
      found->pw_dir[0] == '/') {
    return std::string(found->pw_dir) + "/.cache/torch_lazy";
  }
  return "";
}

KernelStore& kernel_store() {
  struct Used {
    std::string setting;
    int64_t bytes;
    KernelStore store;
    Used* next;
  };
  // Every store that the settings ever described. None goes away: somebody may still use it.
  static std::atomic<Used*> all{nullptr};
  const std::string setting = settings().cache_dir.get();
  const int64_t bytes = settings().cache_bytes.load();
  std::unique_ptr<Used> made;
  for (Used* first = all.load();;) {
    for (Used* used = first; used; used = used->next) {
      if (used->setting == setting && used->bytes == bytes) {
        return used->store;
      }
    }
    if (!made) {
      made.reset(new Used{setting, bytes, {kernel_store_folder(setting), bytes}, nullptr});
    }
    made->next = first;
    if (all.compare_exchange_strong(first, made.get())) {
      return made.release()->store;
    }
  }
}

}  // namespace torch_lazy
