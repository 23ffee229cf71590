#include "problem.h"

#include "codegen/scalar.h"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <sstream>

namespace torch_lazy::codegen {
namespace {

/// Memory between pages that nobody may touch, close to one of them: code that reads or writes
/// outside crashes.
class Guarded {
 public:
  Guarded(size_t size, bool at_end) : size_(size) {
    room_ = (size + kPage - 1) / kPage * kPage;
    base_ = static_cast<char*>(
        mmap(nullptr, room_ + 2 * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (base_ == MAP_FAILED ||
        (room_ > 0 && mprotect(base_ + kPage, room_, PROT_READ | PROT_WRITE) != 0)) {
      throw std::runtime_error("no memory");
    }
    data_ = base_ + kPage + (at_end ? room_ - size : 0);
  }
  ~Guarded() { munmap(base_, room_ + 2 * kPage); }
  Guarded(const Guarded&) = delete;

  char* data() { return data_; }
  void fill(const std::vector<char>& bytes) { std::copy(bytes.begin(), bytes.end(), data_); }
  std::vector<char> bytes() const { return {data_, data_ + size_}; }

 private:
  static constexpr size_t kPage = 4096;
  size_t size_;
  size_t room_;
  char* base_;
  char* data_;
};

/// A call and what it points to.
struct Prepared {
  std::vector<std::unique_ptr<Guarded>> memory;
  std::unique_ptr<Guarded> scratch;
  std::vector<void*> pointers;
  std::vector<int64_t> numbers;
  int64_t status = 0;
  Call call;
  int64_t units;

  explicit Prepared(const Problem& problem, bool at_end = true) {
    for (const auto& bytes : problem.memory) {
      memory.push_back(std::make_unique<Guarded>(bytes.size(), at_end));
      memory.back()->fill(bytes);
    }
    numbers = problem.sizes;
    for (const auto& strides : problem.strides) {
      numbers.insert(numbers.end(), strides.begin(), strides.end());
    }
    size_t scratch_size = 0;
    for (size_t i = 0; i < problem.kernel.pointers.size(); ++i) {
      if (problem.kernel.pointers[i].use == Use::scratch) {
        numbers.push_back(static_cast<int64_t>(scratch_size));
        scratch_size += (problem.memory[i].size() + 63) / 64 * 64;
        pointers.push_back(nullptr);
      } else {
        pointers.push_back(memory[i]->data());
      }
    }
    scratch = std::make_unique<Guarded>(scratch_size, true);
    call.pointers = pointers.data();
    call.numbers = numbers.data();
    call.arguments = problem.arguments.data();
    call.scratch = scratch->data();
    call.status = &status;
    call.tile = problem.tile;
    units = codegen::units(problem.kernel, problem.sizes.data(), problem.tile);
    call.end = units;
  }

  Outcome outcome() const {
    Outcome outcome;
    outcome.status = status;
    for (const auto& piece : memory) {
      outcome.memory.push_back(piece->bytes());
    }
    return outcome;
  }
  Prepared(const Prepared&) = delete;
};

double ulp(Type type, double value) {
  const int digits = type == Type::f64 ? 53 : type == Type::f32 ? 24 : type == Type::f16 ? 11 : 8;
  const int least = type == Type::f64 ? -1074 : type == Type::f16 ? -24 : -149;
  const int exponent = value == 0 ? least : std::ilogb(value) - digits + 1;
  return std::ldexp(1.0, std::max(exponent, least));
}

bool is_same(Type type, Scalar expected, Scalar found, Tolerance tolerance) {
  if (!is_float(type)) {
    return expected.integer == found.integer;
  }
  const double a = expected.number, b = found.number;
  if (a == b || (std::isnan(a) && std::isnan(b))) {
    return true;
  }
  if (!std::isfinite(a) && !std::isfinite(b)) {
    return false;
  }
  if (tolerance.ulps == 0 || std::isnan(a) || std::isnan(b)) {
    return std::fabs(a - b) <= tolerance.absolute;
  }
  const double greatest = type == Type::f64 ? std::numeric_limits<double>::max() : 0x1p128;
  const double x = std::clamp(a, -greatest, greatest), y = std::clamp(b, -greatest, greatest);
  return std::fabs(x - y) <= tolerance.ulps * ulp(type, x) + tolerance.absolute;
}

}  // namespace

Outcome run_interpreter(const Problem& problem) {
  Prepared prepared(problem);
  interpret(problem.kernel, prepared.call);
  return prepared.outcome();
}

Outcome run_function(const Problem& problem, Function function, int64_t chunk) {
  Prepared prepared(problem, /*at_end=*/chunk != 1);
  if (chunk == 0) {
    function(&prepared.call);
    return prepared.outcome();
  }
  for (int64_t begin = 0; begin < prepared.units; begin += chunk) {
    prepared.call.begin = begin;
    prepared.call.end = std::min(begin + chunk, prepared.units);
    function(&prepared.call);
  }
  return prepared.outcome();
}

const std::vector<std::string>& runnable_targets() {
  static const std::vector<std::string> targets = [] {
    std::vector<std::string> list = {"host", "x86-64"};
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
      list.push_back("x86-64-v3");
    }
    return list;
  }();
  return targets;
}

tlc_target* opened(const std::string& target) {
  static std::mutex mutex;
  struct Close {
    void operator()(tlc_target* target) const { tlc_close(target); }
  };
  static std::map<std::string, std::unique_ptr<tlc_target, Close>> targets;
  std::lock_guard lock(mutex);
  auto& found = targets[target];
  if (!found) {
    char* error = nullptr;
    found.reset(tlc_open(target.c_str(), &error));
    EXPECT_NE(found, nullptr) << error;
    tlc_free(error);
  }
  return found.get();
}

Machine::Machine(const std::string& target, const std::string& kernel_text) {
  tlc_result result = tlc_compile(opened(target), kernel_text.c_str());
  if (!result.object) {
    const std::string message = result.error;
    tlc_free(result.error);
    throw std::runtime_error(message);
  }
  char* error = nullptr;
  code_ = tlc_load(opened(target), result.object, result.size, &error);
  tlc_free(result.object);
  if (!code_) {
    const std::string message = error;
    tlc_free(error);
    throw std::runtime_error(message);
  }
}

::testing::AssertionResult same(Type type, const std::vector<char>& expected,
                                const std::vector<char>& found, Tolerance tolerance) {
  if (expected.size() != found.size()) {
    return ::testing::AssertionFailure() << "sizes differ";
  }
  const int size = size_of(type);
  for (size_t i = 0; i < expected.size(); i += size) {
    const Scalar a = read_scalar(type, &expected[i]);
    const Scalar b = read_scalar(type, &found[i]);
    if (!is_same(type, a, b, tolerance)) {
      std::ostringstream message;
      message.precision(17);
      message << "element " << i / size << ": expected ";
      if (is_float(type)) {
        message << a.number << ", found " << b.number;
      } else {
        message << a.integer << ", found " << b.integer;
      }
      return ::testing::AssertionFailure() << message.str();
    }
  }
  return ::testing::AssertionSuccess();
}

void expect_same_everywhere(const Problem& problem, Tolerance tolerance, int64_t chunk) {
  ASSERT_NO_THROW(verify(problem.kernel)) << text(problem.kernel);
  const Outcome expected = run_interpreter(problem);
  for (const std::string& target : runnable_targets()) {
    const Machine machine(target, problem.kernel);
    const Outcome found = run_function(problem, machine.function(), chunk);
    EXPECT_EQ(expected.status != 0, found.status != 0) << target;
    for (size_t i = 0; i < problem.kernel.pointers.size(); ++i) {
      const Pointer& pointer = problem.kernel.pointers[i];
      if (pointer.use == Use::write || pointer.use == Use::read_write) {
        EXPECT_TRUE(same(pointer.type, expected.memory[i], found.memory[i], tolerance))
            << "pointer " << i << " on " << target << "\n"
            << text(problem.kernel);
      }
    }
  }
}

}  // namespace torch_lazy::codegen
