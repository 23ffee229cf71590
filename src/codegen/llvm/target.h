// A processor to make code for: its name, its features, and what the emitter wants to know of them.
#pragma once

#include <llvm/Target/TargetMachine.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace torch_lazy::codegen {

/// What decides how code is emitted.
struct Features {
  int vector_bytes = 16;
  bool fma = false;
  bool rounding = false;  // floor and its kin are instructions
  bool half = false;      // f16 to f32 and back are instructions
  bool masks = false;     // on loads and stores of any type, at little cost
  bool tables = false;    // of 16 f32 in a register
  int masked_bytes = 99;  // the smallest elements that can be loaded and stored under a mask
};

class Target {
 public:
  /// "host" or a processor's name as in codegen.h. Throws std::invalid_argument.
  explicit Target(const std::string& name);

  const Features& features() const { return features_; }
  const std::string& text() const { return text_; }
  const std::string& triple() const { return triple_; }
  bool is_host() const { return is_host_; }

  /// A machine for one compilation at a time: LLVM's may not be shared between threads, and making
  /// one takes long enough to keep them.
  std::unique_ptr<llvm::TargetMachine> take_machine() const;
  void give_back(std::unique_ptr<llvm::TargetMachine> machine) const;

 private:
  std::string triple_;
  std::string cpu_;
  std::string feature_list_;
  std::string text_;
  Features features_;
  bool is_host_ = false;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<llvm::TargetMachine>> machines_;
};

}  // namespace torch_lazy::codegen
