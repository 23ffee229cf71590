// What torch-lazy's own code costs per captured operator, apart from Python, autograd and PyTorch's
// dispatcher: the same calls on lazy tensors and on tensors whose boxed kernel does nothing, in
// turns; the difference is ours.
//
//   capture_cost [--turns N] [--calls N] [--only OPERATOR] [--lazy-only]
//
// Prints one line of JSON per operator. --lazy-only is for callgrind: just the calls on lazy
// tensors.
#include <torch_lazy/torch_lazy.h>

#include <ATen/ATen.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace {

// ---- A device that does nothing
// ------------------------------------------------------------------

// PrivateUse1 tensors without memory; an operator drops its arguments and returns `answer`.
c10::IValue* answer = nullptr;

void do_nothing(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  torch::jit::drop(*stack, op.schema().arguments().size());
  for (size_t i = 0; i < op.schema().returns().size(); ++i) {
    stack->push_back(*answer);
  }
}

at::Tensor idle_like(const at::Tensor& tensor) {
  auto impl =
      c10::make_intrusive<c10::TensorImpl>(c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           tensor.dtype(), at::Device(at::kPrivateUse1, 0));
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides());
  return at::Tensor(std::move(impl));
}

// ---- The operators
// -------------------------------------------------------------------------------

struct Operands {
  at::Tensor x, y, weight, bias, scale;
};

/// Takes the last result and gives the next.
using Call = std::function<at::Tensor(const Operands&, at::Tensor)>;

struct Case {
  std::string name;
  Call call;
  int operators = 1;  // captured by a call
};

std::vector<Case> cases() {
  std::vector<Case> list = {
      {"add.Tensor", [](const Operands& o, at::Tensor x) { return at::add(x, o.y); }},
      {"mul.Tensor", [](const Operands& o, at::Tensor x) { return at::mul(x, o.y); }},
      {"add_.Tensor", [](const Operands& o, at::Tensor x) { return x.add_(o.y, 0.5); }},
      {"relu", [](const Operands&, at::Tensor x) { return at::relu(x); }},
      {"gelu", [](const Operands&, at::Tensor x) { return at::gelu(x, "tanh"); }},
      {"addmm", [](const Operands& o, at::Tensor x) { return at::addmm(o.bias, x, o.weight); }},
      {"mm", [](const Operands& o, at::Tensor x) { return at::mm(x, o.weight); }},
      {"sum.dim_IntList",
       [](const Operands&, at::Tensor x) {
         at::sum(x, at::IntArrayRef({0}), true);
         return x;
       }},
      {"_softmax", [](const Operands&, at::Tensor x) { return at::_softmax(x, -1, false); }},
      {"native_layer_norm",
       [](const Operands& o, at::Tensor x) {
         return std::get<0>(at::native_layer_norm(x, {16}, o.scale, o.bias, 1e-5));
       }},
  };
  const std::vector<Case> each = list;
  list.push_back({"a mix of these",
                  [each](const Operands& o, at::Tensor x) {
                    for (const Case& one : each) {
                      x = one.call(o, std::move(x));
                    }
                    return x;
                  },
                  static_cast<int>(each.size())});
  // Between two operators of a real program come Python and autograd, which fill the first cache.
  const auto others = std::make_shared<std::vector<int64_t>>((64 << 10) / sizeof(int64_t));
  list.push_back({"the mix, first cache cold",
                  [each, others](const Operands& o, at::Tensor x) {
                    for (const Case& one : each) {
                      x = one.call(o, std::move(x));
                      for (size_t i = 0; i < others->size(); i += 8) {
                        ++(*others)[i];
                      }
                    }
                    return x;
                  },
                  static_cast<int>(each.size())});
  return list;
}

double nanoseconds_per_operator(const Case& test, const Operands& operands, int operators) {
  const int calls = std::max(1, operators / test.operators);
  at::Tensor x = operands.x;
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; ++i) {
    x = test.call(operands, std::move(x));
  }
  const auto end = std::chrono::steady_clock::now();
  return std::chrono::duration<double, std::nano>(end - start).count() / calls / test.operators;
}

double median(std::vector<double> values) {
  auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

Operands lazy_operands() {
  const auto options = at::TensorOptions().device(at::kLazy);
  Operands o{at::ones({16, 16}, options), at::ones({16, 16}, options), at::ones({16, 16}, options),
             at::ones({16}, options), at::ones({16}, options)};
  torch_lazy::sync();
  return o;
}

Operands idle_operands(const Operands& o) {
  return {idle_like(o.x), idle_like(o.y), idle_like(o.weight), idle_like(o.bias),
          idle_like(o.scale)};
}

struct Options {
  int turns = 101;
  int calls = 500;  // few enough for the caches that a training step would also find warm
  std::string only;
  bool lazy_only = false;
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : "";
    if (flag == "--lazy-only") {
      options.lazy_only = true;
    } else if (flag == "--turns") {
      options.turns = std::atoi(value), ++i;
    } else if (flag == "--calls") {
      options.calls = std::atoi(value), ++i;
    } else if (flag == "--only") {
      options.only = value, ++i;
    } else {
      std::fprintf(stderr, "unknown option %s\n", argv[i]);
      std::exit(2);
    }
  }
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  at::AutoDispatchBelowAutograd no_autograd;
  const Operands lazy = lazy_operands();
  const Operands idle = idle_operands(lazy);
  answer = new c10::IValue(idle.x);
  torch::Library idle_device(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__,
                             __LINE__);
  for (const Case& test : cases()) {
    if (test.operators == 1) {
      idle_device.impl(test.name.c_str(), torch::CppFunction::makeFromBoxedFunction<&do_nothing>());
    }
  }

  for (const Case& test : cases()) {
    if (!options.only.empty() && options.only != test.name) {
      continue;
    }
    nanoseconds_per_operator(test, lazy, 10);  // the first call works out the layout
    std::vector<double> ours;
    std::vector<double> nothing;
    for (int turn = 0; turn < options.turns; ++turn) {
      ours.push_back(nanoseconds_per_operator(test, lazy, options.calls));
      torch_lazy::sync();  // an in-place chain stays reachable from its tensor
      if (!options.lazy_only) {
        nothing.push_back(nanoseconds_per_operator(test, idle, options.calls));
      }
    }
    const double dispatch = nothing.empty() ? 0 : median(nothing);
    std::printf(
        "{\"operator\": \"%s\", \"total_ns\": %.1f, \"dispatcher_ns\": %.1f, "
        "\"own_ns\": %.1f, \"calls\": %d}\n",
        test.name.c_str(), median(ours), dispatch, median(ours) - dispatch,
        options.turns * options.calls + 10);
    std::fflush(stdout);
  }
  return 0;
}
