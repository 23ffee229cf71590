// What the core asks of a host language, if there is one. The Python module fills these in; a C++
// process leaves them empty.
#pragma once

#include <torch_lazy/export.h>
#include <torch_lazy/scope.h>

#include <exception>
#include <string>
#include <vector>

namespace torch_lazy::hooks {

struct Table {
  /// The innermost line of the user's own code, as "file:line function".
  std::string (*source_line)() = nullptr;
  /// All frames of this thread, innermost first.
  std::vector<SourceLocation> (*frames)() = nullptr;
  /// Releases the interpreter's lock if this thread holds it; the result goes to `reacquire`.
  void* (*release)() = nullptr;
  void (*reacquire)(void*) = nullptr;
  /// The library that an installed package offers as backend `name`; empty if none does.
  std::string (*backend_path)(const std::string& name) = nullptr;
  /// Raises an error of the host language again, with a note; returns if it is none of its.
  void (*raise_again)(const std::exception_ptr& error, const std::string& note) = nullptr;
  /// Raises the host language's error if the user has interrupted the program.
  void (*check_interrupt)() = nullptr;
};

TORCH_LAZY_API void install(const Table& table);

/// The line of the innermost SourceScope, else of the host language's user; empty without either.
TORCH_LAZY_API std::string source_line();

std::string backend_path(const std::string& name);
void raise_again(const std::exception_ptr& error, const std::string& note);
void check_interrupt();
/// Empty when there is no host language, or none of its code called this thread.
std::vector<SourceLocation> frames();

/// Releases the interpreter's lock for a scope in which this thread may wait or compute for long.
class AllowOtherThreads {
 public:
  AllowOtherThreads();
  ~AllowOtherThreads();
  AllowOtherThreads(const AllowOtherThreads&) = delete;
  AllowOtherThreads& operator=(const AllowOtherThreads&) = delete;

 private:
  void* state_;
};

}  // namespace torch_lazy::hooks
