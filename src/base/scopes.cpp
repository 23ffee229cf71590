// The scopes and source locations of a thread.
#include "base/scopes.h"

#include "base/hooks.h"
#include "base/settings.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace torch_lazy {
namespace {

struct OpenScope {
  std::shared_ptr<const std::string> path;  // with those around it
  int64_t next_sibling;
};

struct Scopes {
  std::vector<OpenScope> open;
  int64_t next = 1;  // number of the next scope opened at this level
};

thread_local Scopes scopes;
thread_local std::vector<SourceLocation> source_scopes;  // innermost last
thread_local bool keeps_source_lines = false;

/// "step" of "void Trainer::step(int)".
std::string plain_name(std::string signature) {
  signature.resize(std::min(signature.find('('), signature.size()));
  return signature.substr(signature.find_last_of(": ") + 1);
}

bool is_installed(const std::string& file) {
  return file.find("site-packages") != std::string::npos ||
         file.find("dist-packages") != std::string::npos;
}

}  // namespace

void push_scope(const std::string& name) {
  std::string path = scopes.open.empty() ? "" : *scopes.open.back().path + "/";
  path += name + "." + std::to_string(scopes.next);
  scopes.open.push_back({std::make_shared<const std::string>(std::move(path)), scopes.next + 1});
  scopes.next = 1;
}

void pop_scope() {
  TORCH_CHECK(!scopes.open.empty(), "torch-lazy: no scope is open on this thread");
  scopes.next = scopes.open.back().next_sibling;
  scopes.open.pop_back();
}

ScopePusher::ScopePusher(const std::string& name) {
  push_scope(name);
}

ScopePusher::~ScopePusher() {
  pop_scope();
}

std::string current_scope() {
  return scopes.open.empty() ? "" : *scopes.open.back().path;
}

void reset_scopes() {
  TORCH_CHECK(scopes.open.empty(), "torch-lazy: a step ended inside the scope ", current_scope(),
              "; close it first");
  scopes.next = 1;
}

std::shared_ptr<const std::string> scope_for_node() {
  if (scopes.open.empty() || !settings().ir_debug.load(std::memory_order_relaxed)) {
    return nullptr;
  }
  return scopes.open.back().path;
}

SourceScope::SourceScope(const std::source_location& here) {
  source_scopes.push_back(
      {plain_name(here.function_name()), here.file_name(), static_cast<int>(here.line())});
}

SourceScope::~SourceScope() {
  source_scopes.pop_back();
}

std::string innermost_source_scope() {
  if (source_scopes.empty()) {
    return "";
  }
  const SourceLocation& here = source_scopes.back();
  return here.file + ":" + std::to_string(here.line) + " " + here.function;
}

void keep_source_lines(bool keep) {
  keeps_source_lines = keep;
}

std::string source_for_node() {
  const Settings& s = settings();
  const bool wanted = keeps_source_lines || s.source_lines.load(std::memory_order_relaxed) ||
                      s.ir_debug.load(std::memory_order_relaxed);
  return wanted ? hooks::source_line() : std::string();
}

std::vector<SourceLocation> source_frames() {
  std::vector<SourceLocation> frames(source_scopes.rbegin(), source_scopes.rend());
  for (SourceLocation& frame : hooks::frames()) {
    frames.push_back(std::move(frame));
  }
  if (frames.empty()) {
    frames.push_back({"", "No Python Frames", -1});
  }
  return frames;
}

std::string first_user_frame() {
  const std::vector<SourceLocation> frames = source_frames();
  for (auto frame = frames.rbegin(); frame != frames.rend(); ++frame) {
    if (frame->line >= 0 && !is_installed(frame->file)) {
      return frame->file + " " + frame->function + " " + std::to_string(frame->line);
    }
  }
  return "";
}

}  // namespace torch_lazy
