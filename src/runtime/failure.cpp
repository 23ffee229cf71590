// Text, type and delivery of errors; delivery of warnings.
#include "runtime/failure.h"

#include "base/hooks.h"
#include "base/ranked_mutex.h"

#include <c10/util/Exception.h>

#include <deque>
#include <iostream>
#include <mutex>
#include <new>
#include <sstream>
#include <utility>
#include <vector>

namespace torch_lazy {
namespace {

std::string what(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& e) {
    return e.what_without_backtrace();
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "unknown error";
  }
}

std::string describe(const Description& call, const std::string& source, const std::string& what) {
  std::ostringstream out;
  out << what << "\n(torch-lazy: raised by " << call.call_text()
      << ", recorded earlier and executed now";
  if (!source.empty()) {
    out << "; called at " << source;
  } else {
    out << "; TORCH_LAZY_SOURCE_LINES=1 adds the line that called it";
  }
  out << ")";
  return out.str();
}

/// Throws an error of the original's type with another message, so that Python sees eager's class.
[[noreturn]] void raise_like(const std::exception_ptr& original, const std::string& message) {
  hooks::raise_again(original, message);
  const c10::SourceLocation here{__func__, __FILE__, static_cast<uint32_t>(__LINE__)};
  try {
    std::rethrow_exception(original);
  } catch (const c10::IndexError&) {
    throw c10::IndexError(here, message);
  } catch (const c10::ValueError&) {
    throw c10::ValueError(here, message);
  } catch (const c10::TypeError&) {
    throw c10::TypeError(here, message);
  } catch (const c10::NotImplementedError&) {
    throw c10::NotImplementedError(here, message);
  } catch (const c10::LinAlgError&) {
    throw c10::LinAlgError(here, message);
  } catch (const c10::OutOfMemoryError&) {
    throw c10::OutOfMemoryError(here, message);
  } catch (const c10::Error&) {
    throw c10::Error(here, message);
  } catch (const std::runtime_error& e) {
    throw std::runtime_error(message);
  }  // anything else, a Python exception above all, goes on as it is
}

[[noreturn]] void raise_as(Failure& failure, const std::string& message) {
  failure.delivered = true;
  if (failure.original) {
    raise_like(failure.original, message);
  }
  TORCH_CHECK(false, message);
}

struct Undelivered {
  RankedMutex mutex{Rank::failures};
  std::deque<std::shared_ptr<Failure>> failures;
  std::vector<std::pair<std::thread::id, c10::Warning>> warnings;

  Warnings take_warnings(bool of_any_thread) {
    const std::thread::id self = std::this_thread::get_id();
    Warnings taken;
    std::lock_guard<RankedMutex> lock(mutex);
    for (const auto& [scheduler, warning] : warnings) {
      if (of_any_thread || scheduler == self) {
        taken.push_back(warning);
      }
    }
    std::erase_if(warnings, [&](const std::pair<std::thread::id, c10::Warning>& one) {
      return of_any_thread || one.first == self;
    });
    return taken;
  }

  std::shared_ptr<Failure> take(bool of_any_thread) {
    std::vector<std::shared_ptr<Failure>>
        delivered;  // freed after the lock: may be Python's errors
    std::lock_guard<RankedMutex> lock(mutex);
    std::erase_if(failures, [&](const std::shared_ptr<Failure>& failure) {
      if (failure->delivered) {
        delivered.push_back(failure);
      }
      return failure->delivered.load();
    });
    for (auto it = failures.begin(); it != failures.end(); ++it) {
      if (of_any_thread || is_own(**it)) {
        std::shared_ptr<Failure> failure = *it;
        failure->delivered = true;
        failures.erase(it);
        return failure;
      }
    }
    return nullptr;
  }
};

Undelivered& undelivered() {
  static auto* instance = new Undelivered();
  return *instance;
}

template <typename... Types>
bool is_one_of(const std::exception_ptr& error) {
  bool found = false;
  auto check = [&](auto* type) {
    using Type = std::remove_pointer_t<decltype(type)>;
    try {
      std::rethrow_exception(error);
    } catch (const Type&) {
      found = true;
    } catch (...) {
      // another type
    }
  };
  (check(static_cast<Types*>(nullptr)), ...);
  return found;
}

}  // namespace

std::shared_ptr<Failure> make_failure(const Description& call, const std::string& source,
                                      const std::exception_ptr& error) {
  auto failure = std::make_shared<Failure>();
  failure->message = describe(call, source, what(error));
  failure->original = error;
  return failure;
}

void raise(Failure& failure) {
  raise_as(failure, failure.message);
}

void raise_elsewhere(Failure& failure, const std::string& why) {
  raise_as(failure, failure.message +
                        "\n(torch-lazy: the error belongs to that call and not to the code that it "
                        "is raised in: " +
                        why + ")");
}

bool is_own(const Failure& failure) {
  return failure.scheduler == std::this_thread::get_id();
}

void post(std::shared_ptr<Failure> failure) {
  Undelivered& u = undelivered();
  std::lock_guard<RankedMutex> lock(u.mutex);
  u.failures.push_back(std::move(failure));
}

void post(Warnings warnings, std::thread::id scheduler) {
  Undelivered& u = undelivered();
  std::lock_guard<RankedMutex> lock(u.mutex);
  for (c10::Warning& warning : warnings) {
    u.warnings.emplace_back(scheduler, std::move(warning));
  }
}

void give_warnings(bool of_any_thread) {
  for (const c10::Warning& warning : undelivered().take_warnings(of_any_thread)) {
    c10::warn(warning);
  }
}

void raise_undelivered(bool of_any_thread) {
  give_warnings(of_any_thread);
  if (std::shared_ptr<Failure> failure = undelivered().take(of_any_thread)) {
    raise_elsewhere(*failure, of_any_thread
                                  ? "nobody has read its result, and the program waits here"
                                  : "it failed in a run before, nobody has read its result, and "
                                    "this is the next run of the same thread");
  }
}

void report_undelivered() {
  for (const c10::Warning& warning : undelivered().take_warnings(true)) {
    std::cerr << "torch-lazy: a warning was not given before the process ended: " << warning.msg()
              << std::endl;
  }
  while (std::shared_ptr<Failure> failure = undelivered().take(true)) {
    std::cerr << "torch-lazy: an error was not raised before the process ended: "
              << failure->message << std::endl;
  }
}

bool is_passing(const std::exception_ptr& error) {
  return is_one_of<c10::OutOfMemoryError, std::bad_alloc>(error);
}

bool is_final(const std::exception_ptr& error) {
  return is_one_of<c10::IndexError, c10::ValueError, c10::TypeError, c10::NotImplementedError,
                   c10::LinAlgError>(error);
}

}  // namespace torch_lazy
