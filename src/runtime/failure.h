// Errors and warnings of runs: what the user reads, and that each is raised or given once.
#pragma once

#include "base/warnings.h"
#include "ir/node.h"

#include <exception>
#include <memory>
#include <string>
#include <thread>

namespace torch_lazy {

/// The error of a call that could not be executed, with its operator, shapes and source line.
std::shared_ptr<Failure> make_failure(const Description& call, const std::string& source,
                                      const std::exception_ptr& error);

/// Raises it, with eager's type.
[[noreturn]] void raise(Failure& failure);

/// The same at a place that did not ask for what failed: the message says so, and why it is raised
/// there.
[[noreturn]] void raise_elsewhere(Failure& failure, const std::string& why);

/// Whether the failure is this thread's: it recorded the call that failed or, where the call is not
/// to blame (no memory), scheduled the run. The program's other threads never see it, unless they
/// read what failed or wait for the whole device.
bool is_own(const Failure& failure);

/// Keeps a failure until its thread next touches the device.
void post(std::shared_ptr<Failure> failure);

/// Keeps what kernels of a run warned of until the thread that scheduled it next touches the
/// device: a worker's own warnings would pass by the program's filters.
void post(Warnings warnings, std::thread::id scheduler);

/// Gives those warnings: of runs that this thread scheduled, or (`of_any_thread`) of any.
void give_warnings(bool of_any_thread);

/// Gives the warnings, and raises the first failure that the program has not seen yet, if there is
/// one: of this thread, or (`of_any_thread`) of any.
void raise_undelivered(bool of_any_thread);

/// At the end of the process: says on stderr what was never raised or given.
void report_undelivered();

/// Whether the same call may well succeed later (no memory, a backend that refused): its nodes just
/// stay pending.
bool is_passing(const std::exception_ptr& error);

/// Whether the error tells of the user's mistake in terms of eager's types (IndexError, ...): the
/// call can never succeed.
bool is_final(const std::exception_ptr& error);

}  // namespace torch_lazy
