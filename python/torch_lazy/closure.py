"""Functions that run at the end of a step, when the tensors they look at have their values.

The names of a context's attributes are those that torch._lazy uses: after install_as_torch_lazy,
both packages see the same closures.
"""

import collections
import os
import threading
from collections.abc import Callable, Iterable
from typing import Any

from torch_lazy import _C
from torch_lazy.device_context import DeviceContext, get_device_context

Closure = Callable[[], Any]

_IDLE_SECONDS = 3
"""After so long without work a handler's thread ends; more work starts another."""

_QUEUE_SETTING = "LTC_MAX_ASYNC_QUEUE"


class ClosureHandler:
    """Runs closures one after the other, in the caller's thread."""

    def run(self, closure: Closure) -> None:
        closure()

    def __call__(self, closures: Iterable[Closure]) -> None:
        for closure in closures:
            self.run(closure)


class AsyncClosureHandler(ClosureHandler):
    """Runs closures one after the other, in a thread of its own.

    A closure that raises ends the thread: the next call of `run` reports it and takes no closure.
    Those that were waiting then run when there is more work.

    Args:
        max_queue_size: how many closures may wait before `run` waits for one to begin; 0 means any
            number. The setting LTC_MAX_ASYNC_QUEUE, when there is one, counts instead.
    """

    def __init__(self, max_queue_size: int = 100) -> None:
        self._max_waiting = _queue_size(max_queue_size)
        self._waiting: collections.deque[Closure] = collections.deque()
        self._changed = threading.Condition()  # guards all below and what waits
        self._exception: Exception | None = None
        self._thread: threading.Thread | None = None

    def start_event_loop(self) -> None:
        """Starts the thread, unless there is one."""
        with self._changed:
            # After a fork the thread is still known, but it does not live.
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._event_loop)
                self._thread.start()

    def run(self, closure: Closure) -> None:
        with self._changed:
            while self._exception is None and self._is_full():
                self.start_event_loop()
                self._changed.wait()
            if self._exception is not None:
                cause, self._exception = self._exception, None
                raise RuntimeError(
                    "Cannot run asynchronous closure due to previously raised exception"
                ) from cause
            self._waiting.append(closure)
            self._changed.notify_all()
            self.start_event_loop()

    def _is_full(self) -> bool:
        return 0 < self._max_waiting <= len(self._waiting)

    def _event_loop(self) -> None:
        while True:
            with self._changed:
                if not self._changed.wait_for(lambda: self._waiting, timeout=_IDLE_SECONDS):
                    self._thread = None
                    return
                closure = self._waiting.popleft()
                self._changed.notify_all()
            try:
                closure()
            except Exception as exception:
                with self._changed:
                    self._exception = exception
                    self._thread = None
                    self._changed.notify_all()
                return


def add_step_closure(
    closure: Callable[..., Any], args: Iterable[Any] = (), run_async: bool = False
) -> None:
    """Has `closure(*args)` run when the step ends, after everything recorded has run.

    A closure may read tensors without a run of its own for each: by then their values are there.
    Closures run in the order in which they were added.

    Args:
        closure: the function; what it returns is ignored.
        args: its arguments, as they are now.
        run_async: in another thread, while the program goes on.
    """
    context = get_device_context()
    name = "async_step_closures" if run_async else "step_closures"
    if getattr(context, name, None) is None:
        setattr(context, name, [])
    arguments = tuple(args)
    getattr(context, name).append(lambda: closure(*arguments))


def run_step_closures() -> DeviceContext:
    """Runs the closures that were added since the last time; mark_step does this.

    A closure that another one adds runs the next time. What follows one that raises is dropped.
    """
    context = get_device_context()
    _run(context, "async_step_closures", "async_closure_handler", AsyncClosureHandler)
    _run(context, "step_closures", "closure_handler", ClosureHandler)
    return context


def _run(
    context: Any, closures_name: str, handler_name: str, handler_type: type[ClosureHandler]
) -> None:
    closures = getattr(context, closures_name, None)
    if not closures:
        return
    setattr(context, closures_name, [])
    if getattr(context, handler_name, None) is None:
        setattr(context, handler_name, handler_type())
    getattr(context, handler_name)(closures)


def _queue_size(given: int) -> int:
    # A program may put it into its environment as late as this, or set it in torch_lazy.config.
    from_environment = os.environ.get(_QUEUE_SETTING)
    if from_environment is not None:
        return int(from_environment)
    default = next(row[2] for row in _C.settings() if row[0] == _QUEUE_SETTING)
    value = _C.get_setting(_QUEUE_SETTING)
    return given if value == default else int(value)
