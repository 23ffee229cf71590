// The passes in order, and the program as text.
#include "base/ranked_mutex.h"
#include "base/settings.h"
#include "compile/program.h"

#include <c10/util/Exception.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <mutex>
#include <sstream>

namespace torch_lazy::compile {

Program drop_dead(Program program) {
  std::vector<Step> kept;
  for (Step& step : program.steps) {
    if (step.kind != Step::Kind::piece || !step.writes.empty()) {
      kept.push_back(std::move(step));
    }
  }
  program.steps = std::move(kept);
  return program;
}

namespace {

struct Pass {
  const char* name;
  Program (*run)(Program);
};

/// After `lower`, in this order.
constexpr Pass kPasses[] = {
    {"share", share},         {"inline fills", inline_fills},
    {"fuse", fuse},           {"skip copies", skip_copies},
    {"recompute", recompute}, {"split reductions", split_reductions},
    {"drop dead", drop_dead}, {"order products", order_products},
    {"reuse", reuse},
};

using Clock = std::chrono::steady_clock;

void log_pass(const char* name, Clock::time_point start, const Program& program) {
  if (settings().compile_log.empty()) {
    return;
  }
  const double milliseconds = std::chrono::duration<double>(Clock::now() - start).count() * 1e3;
  std::ostringstream out;
  out << "graph " << std::hex << program.graph->hash[0] << std::dec << ", pass " << name << ": "
      << milliseconds << " ms, " << program.steps.size() << " steps\n"
      << text(program);
  log(out.str());
}

const char* product_name(const Product& product) {
  if (!product.convolution) {
    return "product";
  }
  switch (product.convolution->kind) {
    case Convolution::Kind::forward:
      return "convolution";
    case Convolution::Kind::input_gradient:
      return "convolution's input gradient";
    default:
      return "convolution's weight gradient";
  }
}

}  // namespace

void log(const std::string& text) {
  const std::string path = settings().compile_log.get();
  if (path.empty()) {
    return;
  }
  static auto* mutex = new RankedMutex(Rank::log);
  std::lock_guard<RankedMutex> lock(*mutex);
  if (path == "-") {
    std::fputs(text.c_str(), stderr);
    return;
  }
  std::ofstream file(path, std::ios::app);
  file << text;
  if (!file) {
    TORCH_WARN_ONCE("torch-lazy: the compile log ", path, " cannot be written");
  }
}

Program compile(std::shared_ptr<const Graph> graph, const Target& target) {
  Clock::time_point start = Clock::now();
  Program program = lower(std::move(graph), target);
  log_pass("lower", start, program);
  for (const Pass& pass : kPasses) {
    start = Clock::now();
    program = pass.run(std::move(program));
    log_pass(pass.name, start, program);
  }
  return program;
}

std::string text(const Program& program) {
  std::ostringstream out;
  for (size_t i = 0; i < program.steps.size(); ++i) {
    const Step& step = program.steps[i];
    out << "step " << i << ": ";
    if (step.kind == Step::Kind::call) {
      const GraphNode& node = program.graph->nodes[step.node];
      out << "call " << node.description->op->name << "(";
      for (size_t k = 0; k < node.operands.size(); ++k) {
        out << (k ? ", " : "") << "slot" << read_slot(program, step, k) << " "
            << node.description->operands[k].shape_text();
      }
      out << ") ->";
      for (uint32_t slot : step.writes) {
        out << " slot" << slot;
      }
      out << "\n";
    } else if (step.kind == Step::Kind::product) {
      const Product& p = step.product;
      out << product_name(p) << " slot" << p.a.slot << " " << p.a.layout.shape_text() << " slot"
          << p.b.slot << " " << p.b.layout.shape_text() << " -> slot" << p.out.slot << "\n";
    } else {
      for (uint32_t slot : step.writes) {
        if (program.slots[slot].cleared) {
          out << "clear slot" << slot << ", ";
        }
      }
      out << text(step.piece);
    }
  }
  return out.str();
}

}  // namespace torch_lazy::compile
