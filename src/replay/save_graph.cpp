// Saving a recording as a list of calls.
#include "base/hash.h"
#include "capture/tensor.h"
#include "replay/archive.h"
#include "replay/recording.h"
#include "replay/replay_data.h"
#include "replay/saved_form.h"
#include "runtime/executor.h"
#include "runtime/real_tensor.h"
#include <torch_lazy/saved_graph.h>
#include <torch_lazy/version.h>

#include <torch/version.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>
#include <random>
#include <sstream>
#include <utility>

namespace torch_lazy {
namespace {

class GraphWriter {
 public:
  GraphWriter(const Recording& recording, size_t arguments, const std::vector<at::Tensor>& known,
              const std::vector<at::Tensor>& hosts, const std::vector<std::string>& names)
      : r_(recording), arguments_(arguments), known_(known), names_(names) {
    for (const at::Tensor& host : hosts) {
      hosts_.push_back(&host);
    }
  }

  std::string contents() {
    check();
    out_.text(TORCH_LAZY_VERSION);
    out_.text(TORCH_VERSION);
    known();
    draws();
    constants();
    nodes();
    results();
    return out_.contents();
  }

 private:
  void check() {
    TORCH_CHECK(r_.obstacle.empty(),
                "torch_lazy.save_graph: the function cannot be saved: ", r_.obstacle);
    TORCH_CHECK(r_.hosts.size() == hosts_.size(),
                "torch_lazy.save_graph: the function takes plain tensors; give it tensors on the "
                "device lazy");
    for (size_t i = 0; i < arguments_; ++i) {
      for (size_t j = 0; j < r_.known.size(); ++j) {
        TORCH_CHECK(i == j || r_.known[i].buffer != r_.known[j].buffer,
                    "torch_lazy.save_graph: argument ", i,
                    " shares memory with another argument or with what the function holds");
      }
    }
    for (uint32_t b = 0; b < r_.after.size(); ++b) {
      TORCH_CHECK(
          r_.after[b].kind != Content::Kind::draw && r_.after[b].kind != Content::Kind::upload,
          "torch_lazy.save_graph: the function replaces the whole content of a tensor that it did "
          "not make by random numbers or data from the host");
    }
    find_overwritten();
  }

  /// Which parameter without content begins the versions that end as a known buffer's content: a
  /// call that overwrites all of a tensor does not read it, so the graph does not say whose it is.
  void find_overwritten() {
    if (!r_.plan) {
      return;
    }
    const Graph& graph = *r_.plan->graph;
    constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();
    std::vector<uint32_t> before(graph.slots, kNone);     // the version that a call replaced
    std::vector<uint32_t> parameter(graph.slots, kNone);  // which one has the slot
    for (uint32_t i = 0; i < graph.parameters.size(); ++i) {
      parameter[graph.parameters[i].slot] = i;
    }
    for (const GraphNode& node : graph.nodes) {
      const Description& d = *node.description;
      for (size_t k = d.fresh.size(); k < node.outputs.size(); ++k) {
        if (node.outputs[k] >= 0) {
          before[node.outputs[k]] = node.operands[d.writes[k - d.fresh.size()].operand];
        }
      }
    }
    overwritten_.assign(graph.parameters.size(), 0);
    for (uint32_t b = 0; b < r_.after.size(); ++b) {
      if (r_.after[b].kind != Content::Kind::slot) {
        continue;
      }
      uint32_t first = r_.after[b].index;
      while (before[first] != kNone) {
        first = before[first];
      }
      const uint32_t from = parameter[first];
      const bool undefined = from != kNone && r_.parameters[from].kind == Content::Kind::undefined;
      TORCH_CHECK(
          from != kNone && (undefined || r_.parameters[from] == Content{Content::Kind::entry, b}),
          "torch_lazy.save_graph: the function replaces the memory of a tensor that it did "
          "not make");
      if (undefined) {
        overwritten_[from] = b + 1;
      }
    }
  }

  void known() {
    out_.number(arguments_);
    out_.number(r_.known.size());
    out_.number(r_.after.size());
    for (size_t i = 0; i < r_.known.size(); ++i) {
      out_.text(i < arguments_                   ? ""
                : i - arguments_ < names_.size() ? names_[i - arguments_]
                                                 : "gradient");
      out_.layout(r_.known[i].layout);
      out_.number(r_.known[i].buffer);
    }
    for (uint32_t b = 0; b < r_.after.size(); ++b) {
      const size_t first = first_over(b);
      const bool has_data = first >= arguments_ && !r_.undefined[b];
      const auto nbytes = static_cast<int64_t>(known_[first].storage().nbytes());
      out_.number(static_cast<uint64_t>(nbytes));
      out_.number(has_data);
      if (has_data) {
        Reading reading(buffer_of(known_[first]));
        data(reading.storage(), nbytes);
      }
    }
  }

  size_t first_over(uint32_t buffer) const {
    size_t i = 0;
    while (r_.known[i].buffer != buffer) {
      ++i;
    }
    return i;
  }

  void data(const c10::Storage& storage, int64_t nbytes) {
    const at::Tensor bytes = real_tensor(storage, bytes_layout(nbytes)).cpu();
    out_.bytes(bytes.const_data_ptr(), static_cast<size_t>(nbytes));
  }

  void op(const OperatorInfo& op) {
    out_.text(op.operator_name.name);
    out_.text(op.operator_name.overload_name);
    out_.number(op.identity);
  }

  void draws() {
    out_.number(r_.draws.size());
    for (const Draw& draw : r_.draws) {
      op(*draw.op);
      out_.layout(draw.layout);
      out_.number(static_cast<uint64_t>(draw.nbytes));
      out_.number(draw.arguments.size());
      for (size_t i = 1; i < draw.arguments.size(); ++i) {
        out_.value(draw.arguments[i]);
      }
    }
  }

  void constants() {
    out_.number(r_.uploads.size());
    for (const HostData& upload : r_.uploads) {
      out_.layout(upload.layout);
      out_.number(static_cast<uint64_t>(upload.nbytes));
      data(upload_again(upload, hosts_), upload.nbytes);
    }
  }

  /// `overwritten`: of what has no content, the known buffer that it is, plus one.
  void content(const Content& content, uint32_t overwritten = 0) {
    out_.number(static_cast<uint64_t>(content.kind));
    out_.number(content.kind == Content::Kind::undefined ? overwritten : content.index);
  }

  void nodes() {
    const Graph empty;
    const Graph& graph = r_.plan ? *r_.plan->graph : empty;
    out_.number(graph.slots);
    out_.number(graph.parameters.size());
    for (size_t i = 0; i < graph.parameters.size(); ++i) {
      out_.number(graph.parameters[i].slot);
      out_.number(static_cast<uint64_t>(graph.parameters[i].nbytes));
      content(r_.parameters[i], overwritten_[i]);
    }
    out_.number(graph.nodes.size());
    for (size_t i = 0; i < graph.nodes.size(); ++i) {
      node(graph.nodes[i], r_.lines[i]);
    }
  }

  void node(const GraphNode& node, const std::string& line) {
    const Description& d = *node.description;
    op(*d.op);
    out_.text(line);
    out_.number(static_cast<uint64_t>(d.default_dtype));
    out_.number(node.operands.size());
    for (size_t k = 0; k < node.operands.size(); ++k) {
      out_.number(node.operands[k]);
      out_.layout(d.operands[k]);
    }
    out_.number(static_cast<uint64_t>(d.numbers));
    for (int k = 0; k < d.numbers; ++k) {
      out_.value(r_.numbers[node.first_number + k]);
    }
    out_.number(d.arguments.size());
    for (const ArgumentSource& source : d.arguments) {
      out_.number(static_cast<uint64_t>(source.kind));
      if (source.kind == ArgumentSource::Kind::constant) {
        out_.value(source.value);
        continue;
      }
      out_.number(static_cast<uint64_t>(source.index));
      out_.number(source.elements.size());
      for (int element : source.elements) {
        out_.number(static_cast<uint64_t>(static_cast<int64_t>(element)));
      }
    }
    out_.number(node.outputs.size());
    for (int32_t slot : node.outputs) {
      out_.number(static_cast<uint64_t>(static_cast<int64_t>(slot)));
    }
  }

  void results() {
    out_.number(r_.results.size());
    for (const MadeTensor& result : r_.results) {
      const bool itself = result.known >= 0;
      const BufferPlace place =
          itself ? BufferPlace{true, r_.known[result.known].buffer} : result.buffer;
      out_.layout(itself ? r_.known[result.known].layout : result.layout);
      out_.number(place.known);
      out_.number(place.index);
      if (!place.known) {
        const MadeBuffer& made = r_.made[place.index];
        content(made.content);
        out_.number(static_cast<uint64_t>(made.nbytes));
      }
    }
  }

  const Recording& r_;
  size_t arguments_;
  const std::vector<at::Tensor>& known_;
  const std::vector<std::string>& names_;
  std::vector<const at::Tensor*> hosts_;
  std::vector<uint32_t> overwritten_;  // by parameter: see content
  ArchiveWriter out_;
};

/// False: errno says why.
bool write_all(int file, std::string_view contents) {
  while (!contents.empty()) {
    const ssize_t written = ::write(file, contents.data(), contents.size());
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written < 0) {
      return false;
    }
    contents.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

/// A new file in a folder, with a name that nobody can guess; gone unless it is renamed.
class TemporaryFile {
 public:
  TemporaryFile(const std::filesystem::path& folder, mode_t mode) {
    std::random_device random;
    for (int attempt = 0; file_ < 0 && attempt < 16; ++attempt) {
      std::ostringstream name;
      name << "." << std::hex << random() << random() << ".tmp";
      name_ = (folder / name.str()).string();
      file_ = ::open(name_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
      if (file_ < 0 && errno != EEXIST) {
        break;
      }
    }
  }

  ~TemporaryFile() {
    if (file_ >= 0) {
      ::close(file_);
    }
    if (made_ || file_ >= 0) {
      ::unlink(name_.c_str());
    }
  }

  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  /// False: errno says why, here and below.
  bool write(std::string_view contents) {
    if (file_ < 0 || !write_all(file_, contents)) {
      return false;
    }
    made_ = true;
    return ::close(std::exchange(file_, -1)) == 0;
  }

  /// Owner, if we may, and mode of the file that this one replaces.
  bool become(const struct stat& old) {
    if (file_ < 0) {
      return false;
    }
    const bool given = ::fchown(file_, old.st_uid, old.st_gid) == 0;
    const mode_t kept = given ? 07777 : 0777;  // no rights of another owner
    return ::fchmod(file_, old.st_mode & kept) == 0;
  }

  bool rename(const std::string& path) {
    made_ = made_ && std::rename(name_.c_str(), path.c_str()) != 0;
    return !made_;
  }

 private:
  std::string name_;
  int file_ = -1;
  bool made_ = false;
};

/// What a path is in the end, when its last part is a link. May be a file that does not exist yet.
std::filesystem::path without_links(std::filesystem::path path) {
  constexpr int kMostLinks = 40;
  std::error_code error;
  for (int i = 0; i < kMostLinks && std::filesystem::is_symlink(path, error); ++i) {
    const std::filesystem::path target = std::filesystem::read_symlink(path, error);
    if (error) {
      break;
    }
    path = path.parent_path() / target;  // the target alone if it is absolute
  }
  return path;
}

/// Devices, pipes and what has no name that could be replaced: written as they are.
bool write_directly(const std::string& path, std::string_view contents) {
  const int file = ::open(path.c_str(), O_WRONLY | O_TRUNC | O_NOCTTY | O_CLOEXEC);
  if (file < 0) {
    return false;
  }
  const bool written = write_all(file, contents);
  const int error = errno;
  const bool closed = ::close(file) == 0;
  errno = written ? errno : error;
  return written && closed;
}

bool same_file(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

/// False: errno says why.
bool write_or_replace(const std::string& path, std::string_view contents) {
  if (path.find('\0') != std::string::npos) {
    errno = EINVAL;
    return false;
  }
  struct stat old{};
  const bool exists = ::stat(path.c_str(), &old) == 0;
  if (!exists && errno != ENOENT) {
    return false;
  }
  const std::filesystem::path target = without_links(path);
  if (exists) {
    struct stat found{};
    if (!S_ISREG(old.st_mode) || ::stat(target.c_str(), &found) != 0 || !same_file(old, found)) {
      return write_directly(path, contents);
    }
    if (::faccessat(AT_FDCWD, target.c_str(), W_OK, AT_EACCESS) != 0) {
      return false;
    }
  }
  const std::filesystem::path folder = target.has_parent_path() ? target.parent_path() : ".";
  TemporaryFile file(folder, exists ? 0600 : 0666);
  return (!exists || file.become(old)) && file.write(contents) && file.rename(target.string());
}

/// Replaces the file in one step: a reader sees the old one or the new one.
void write_file(const std::string& path, const std::string& contents) {
  const bool written = write_or_replace(path, contents);
  const int error = errno;
  TORCH_CHECK(written, "torch-lazy: cannot write ", printable(path), ": ", std::strerror(error));
}

}  // namespace

void save_graph(const Recording& recording, size_t arguments, const std::vector<at::Tensor>& known,
                const std::vector<at::Tensor>& hosts, const std::vector<std::string>& names,
                const std::string& path) {
  std::string contents(kGraphMagic);
  contents.append(reinterpret_cast<const char*>(&kGraphForm), sizeof(kGraphForm));
  contents += GraphWriter(recording, arguments, known, hosts, names).contents();
  const Hash sum = hash_bytes(contents, kGraphForm);
  contents.append(reinterpret_cast<const char*>(sum.data()), sizeof(sum));
  write_file(path, contents);
}

}  // namespace torch_lazy
