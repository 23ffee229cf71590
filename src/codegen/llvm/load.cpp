// Loading through LLVM's ORC. Every kernel has a library of its own there: they all have the same
// symbol, and are unloaded one by one.
#include "codegen/llvm/load.h"

#include "codegen/codegen.h"
#include "codegen/llvm/emit.h"

#include <llvm/Support/MemoryBuffer.h>
#include <llvm/Support/xxhash.h>

#include <cstring>
#include <stdexcept>

namespace torch_lazy::codegen {
namespace {

struct Head {
  char magic[8];
  uint64_t version;
  uint64_t target;  // hash of its features
  uint64_t size;
  uint64_t check;  // hash of the object
};
constexpr char kMagic[9] = "TLCkernl";

uint64_t hash(std::string_view bytes) {
  return llvm::xxh3_64bits(llvm::StringRef(bytes.data(), bytes.size()));
}

Head head_for(const Target& target, std::string_view object) {
  Head head;
  std::memcpy(head.magic, kMagic, sizeof head.magic);
  head.version = TORCH_LAZY_CODEGEN_VERSION;
  head.target = hash(target.text());
  head.size = object.size();
  head.check = hash(object);
  return head;
}

[[noreturn]] void refuse(const std::string& why) {
  throw std::invalid_argument("code generator: " + why);
}

template <class T>
T value_of(llvm::Expected<T> expected) {
  if (!expected) {
    refuse("the machine code cannot be loaded: " + llvm::toString(expected.takeError()));
  }
  return std::move(*expected);
}

void succeed(llvm::Error error) {
  if (error) {
    refuse("the machine code cannot be loaded: " + llvm::toString(std::move(error)));
  }
}

}  // namespace

std::string pack(const Target& target, std::string_view object) {
  const Head head = head_for(target, object);
  std::string packed(reinterpret_cast<const char*>(&head), sizeof head);
  return packed.append(object);
}

std::string_view unpack(const Target& target, std::string_view packed) {
  Head found;
  if (packed.size() < sizeof found) {
    refuse("this is no machine code of ours: too short");
  }
  std::memcpy(&found, packed.data(), sizeof found);
  const std::string_view object = packed.substr(sizeof found);
  const Head expected = head_for(target, object);
  if (std::memcmp(found.magic, expected.magic, sizeof found.magic) != 0) {
    refuse("this is no machine code of ours");
  }
  if (found.version != expected.version) {
    refuse("this machine code was made by another version");
  }
  if (found.target != expected.target) {
    refuse("this machine code is for another processor");
  }
  if (found.size != expected.size || found.check != expected.check) {
    refuse("this machine code is damaged");
  }
  return object;
}

Loader::Loader(const Target& target) {
  llvm::orc::JITTargetMachineBuilder builder{llvm::Triple(target.triple())};
  jit_ = value_of(llvm::orc::LLJITBuilder()
                      .setJITTargetMachineBuilder(std::move(builder))
                      .setPlatformSetUp(llvm::orc::setUpInactivePlatform)
                      .create());
  // A failed load is reported to its caller; LLVM would also print it.
  jit_->getExecutionSession().setErrorReporter(
      [](llvm::Error error) { llvm::consumeError(std::move(error)); });
}

Loader::~Loader() = default;

Loader::Code Loader::load(std::string_view object) {
  const std::string name = std::to_string(count_++);
  llvm::orc::JITDylib& library = jit_->getExecutionSession().createBareJITDylib(name);
  Code code{&library, nullptr};
  try {
    succeed(jit_->addObjectFile(library, llvm::MemoryBuffer::getMemBufferCopy(
                                             llvm::StringRef(object.data(), object.size()), name)));
    code.function = value_of(jit_->lookup(library, kSymbol)).toPtr<void*>();
  } catch (...) {
    unload(code);
    throw;
  }
  return code;
}

void Loader::unload(const Code& code) {
  // Memory that cannot be given back now is given back at the end.
  llvm::consumeError(jit_->getExecutionSession().removeJITDylib(*code.library));
}

}  // namespace torch_lazy::codegen
