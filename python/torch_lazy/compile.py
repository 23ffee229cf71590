"""torch_lazy.compile: a function that is recorded a few times and then replayed without Python.

The function may be a whole training step. A call is recognised by its arguments (signature). What
it reads and writes besides them is found from the recording. Here a call is recorded; which calls
are, and which are replayed, is decided in C++ (src/replay/history.h).
"""

import collections
import contextlib
import functools
import gc
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from torch_lazy import _C
from torch_lazy.device_steps import StepsOnDevice, keep_steps_on_device
from torch_lazy.host_reads import HostReads, load_modes
from torch_lazy.observe import Observed, Observer, merged
from torch_lazy.rates import RateWatch, fix_rates
from torch_lazy.reach import WRAPPERS, Reach, post_hooks, reach_of
from torch_lazy.results import Shape, is_object, is_twisted, leaf_difference

_OTHER_CALL = (
    "it changes the tree of its arguments, or leaves a mode such as no_grad on; do that outside of "
    "the function"
)

_DRAWS_AGAIN = (
    "a checkpoint draws the random numbers of its forward again; checkpoint(..., "
    "preserve_rng_state=False), or leave dropout out of it"
)

_OBSERVED = 4
"""Recorded calls from which it is expected what the next one will use."""


_VAIN_COLLECTIONS = 4
"""Collections of garbage that did not let go of tensors, after which no more are made."""


class CompileWarning(UserWarning):
    """A compiled function is not replayed, or was replayed where it should not have been."""


class Attempt:
    """One recorded call, as far as it is compared with others."""

    def __init__(self, reach: Reach, leaves: list[Any], shape: Shape, rates: RateWatch) -> None:
        self.reach = reach
        self.shape = shape
        self.is_tensor = [_is_lazy(leaf) for leaf in leaves]
        self.leaves = [
            None if lazy else leaf for leaf, lazy in zip(leaves, self.is_tensor, strict=True)
        ]
        """Of its result; tensors on the device are left out."""
        self.learning_rates = rates.rates
        self.fixed_rates = rates.fixed

    def path_of(self, guard: int) -> str:
        return self.reach.path_of(guard)

    def what_is_gone(self, guard: int) -> str:
        return self.reach.what_is_gone(guard)

    def difference(self, before: "Attempt") -> str:
        """In what it differs from a call before, besides what was recorded; empty: in nothing."""
        for x, y, a, b in zip(
            before.learning_rates,
            self.learning_rates,
            before.fixed_rates,
            self.fixed_rates,
            strict=False,
        ):
            if x != y and (a or b):
                return f"a learning rate has changed that replays cannot follow: {max(a, b)}"
        changed = self.reach.same_guards(before.reach)
        if changed:
            return f"{changed} between calls"
        if before.shape != self.shape or before.is_tensor != self.is_tensor:
            return "its results have another structure"
        for x, y in zip(before.leaves, self.leaves, strict=True):
            reason = leaf_difference(x, y)
            if reason:
                return reason
        return ""


class CompiledFunction:
    """What torch_lazy.compile returns. Calling it does what the function does."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        donate: Sequence[int | str] = (),
        pure_hooks: bool = False,
        is_compiling: bool = False,
        cache_size: int = 64,
    ) -> None:
        if not callable(function):
            raise TypeError(f"torch_lazy.compile takes a function, but got {type(function)}")
        functools.update_wrapper(self, function, updated=())
        self._function = function
        self._donate = tuple([donate] if isinstance(donate, (int, str)) else donate)
        self._pure_hooks = pure_hooks
        self._is_compiling = is_compiling
        self._observed: collections.deque[Observed] = collections.deque(maxlen=_OBSERVED)
        self._optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        """Those that count their steps on the device."""
        self._said_new_object = False
        self._said_many_kinds = False
        self._vain_collections = 0
        self._calls = _C.CompiledCalls(cache_size)
        self._call = self._calls.call
        self._options = {
            "donate": self._donate,
            "pure_hooks": pure_hooks,
            "is_compiling": is_compiling,
            "cache_size": cache_size,
        }
        self._own = frozenset(vars(self))

    @property
    def function(self) -> Callable[..., Any]:
        """What is compiled; another function is another call of torch_lazy.compile."""
        return self._function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result, task = self._call(args, kwargs)
        return result if task is None else self._trace(task, args, kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """As a method: bound to its object, whose state is found like that of a closure."""
        return self if instance is None else functools.partial(self, instance)

    # ---- What a user may ask ---------------------------------------------------------------------

    def cache_info(self) -> list[dict[str, Any]]:
        """A row for each signature: its tensors, calls, whether it is replayed, if not why, and
        what had changed when it was recorded again."""
        return [
            {
                "signature": signature.text,
                "recorded": signature.recorded,
                "replayed": bool(signature.recordings),
                "calls": signature.calls,
                "operators": [recording.nodes for recording in signature.recordings],
                "reason": signature.reason,
                "changed": signature.changed,
            }
            for signature in self._calls.signatures
        ]

    def cache_clear(self) -> None:
        """Forgets all recordings; the next calls are recorded anew."""
        self._calls.clear()

    def anew(self) -> "CompiledFunction":
        """The same function with the same options, and no recordings."""
        return _compiled(self.function, self._options)

    def __reduce__(self) -> Any:
        """Like a function: by its name where it has one, else by what it is made of."""
        name = getattr(self, "__qualname__", "")
        found = sys.modules.get(getattr(self, "__module__", ""))
        for part in name.split("."):
            found = getattr(found, part, None)
        if found is self:
            return name
        attributes = {key: value for key, value in vars(self).items() if key not in self._own}
        return _compiled, (self.function, self._options), attributes

    def trusted_call(self, args: tuple[Any, ...], **kwargs: Any) -> Any:
        """What a call with these arguments would replay; None: nothing."""
        return self._calls.trusted_call(args, kwargs)

    # ---- Recording -------------------------------------------------------------------------------

    def _trace(self, task: Any, args: Any, kwargs: Any) -> Any:
        signature = task.signature
        if signature is not None and signature.is_new_object and not self._said_new_object:
            self._said_new_object = True
            self._say_given_up(signature, signature.reason)
        if task.many_kinds and not self._said_many_kinds:
            self._said_many_kinds = True
            self._warn(
                f"{_name_of(self)} is called with other numbers, texts, shapes or objects in "
                f"nearly every call: from now on a call is recorded when one of its kind was made "
                f"before. Pass numbers that change as tensors."
            )
        if not task.records:
            with StepsOnDevice(self._optimizers):
                return self.function(*args, **kwargs)
        result, call = self._record(signature, args, kwargs)
        given_up = task.judge(call)
        if given_up:
            self._say_given_up(signature, given_up)
        return result

    def _record(self, signature: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        arguments = _C.call_tensors(args, kwargs)
        load_modes()
        expected = merged(self._observed)
        before = reach_of(self.function, args, kwargs, expected)
        if before.optimizers:
            for optimizer in before.optimizers:
                keep_steps_on_device(optimizer)
                self._optimizers.add(optimizer)
            before = reach_of(self.function, args, kwargs, expected)
        known, hosts = _split(arguments, before)
        donated = self._donated(args, kwargs, known)
        compiling = said_to_be_compiling() if self._is_compiling else contextlib.nullcontext()
        rates = RateWatch(before.numbers, "type() may look at it" if before.asks_for_types else "")
        recorder = None
        try:
            recorder = _C.Recorder(known, hosts, donated)
            steps = StepsOnDevice(before.optimizers)
            observer = Observer()
            with steps, HostReads(before.names, hosts) as reads, compiling, rates, observer:
                result = self.function(*args, **kwargs)
            leaves: list[Any] = []
            twisted = is_twisted(result)
            shape = Shape(None if twisted else result, leaves)
            if rates.end(leaves):
                result = shape.make(iter(leaves))
            recording = self._finish(recorder, leaves)
        finally:
            if recorder is not None:
                recorder.abandon()  # whoever keeps a traceback keeps the recorder
        observed = observer.result()
        parts = _C.call_parts(args, kwargs)
        after = reach_of(self.function, args, kwargs, observed)
        self._observed.append(observed)
        obstacle = (
            recording.obstacle
            or reads.obstacle
            or reads.without_operator(observer.host_reads)
            or observed.obstacle
            or (_DRAWS_AGAIN if observed.restores_generator and recording.draws else "")
            or ("" if signature.is_of(args, kwargs) else _OTHER_CALL)
            or _state_obstacle(before, after, self._pure_hooks)
            or twisted
            or _result_obstacle(leaves, {id(tensor) for tensor in known})
            or _kept_result(result, after, parts)
            or observer.hash_obstacle(arguments, {*after.tensors, *after.hosts})
            or (_hooked(arguments, known) if recording.backward else "")
        )
        if "reads a number" in obstacle and not self._is_compiling:
            obstacle += (
                "; if that line leaves the read out under torch.compile, "
                "torch_lazy.compile(..., is_compiling=True) helps"
            )
        fix_rates(after, rates.fixed)
        attempt = Attempt(after, leaves, shape, rates)
        call = _C.RecordedCall(recording, attempt)
        call.obstacle = obstacle
        call.guards = after.guards
        call.slots = list(after.tensors.values())
        call.slot_hosts = list(after.hosts.values())
        call.results = attempt.leaves
        call.is_tensor = attempt.is_tensor
        call.rebuild = None if shape.is_leaf() else shape.rebuild()
        call.set_parts([part if after.has_seen(part) else None for part in parts])
        call.set_sources(*rates.sources())
        return result, call

    def _finish(self, recorder: Any, leaves: list[Any]) -> Any:
        tensors = [leaf for leaf in leaves if _is_lazy(leaf)]
        graphs = [graph_behind(tensor) for tensor in tensors]
        if _NEEDED not in graphs and self._vain_collections < _VAIN_COLLECTIONS:
            self._vain_collections += not _collect(lambda: recorder.leaves_others(tensors))
        return recorder.finish(tensors, graphs)

    def _donated(self, args: Any, kwargs: Any, known: list[torch.Tensor]) -> list[int]:
        places = {id(tensor): i for i, tensor in reversed(list(enumerate(known)))}
        donated = []
        for name in self._donate:
            try:
                value = kwargs[name] if isinstance(name, str) else args[name]
            except (KeyError, IndexError):
                raise ValueError(
                    f"torch_lazy.compile: donate names the argument {name!r}, which this call "
                    f"of {getattr(self, '__name__', 'the function')} does not have"
                ) from None
            donated += [places[id(leaf)] for leaf in tree_leaves(value) if id(leaf) in places]
        return donated

    def _say_given_up(self, signature: Any, reason: str) -> None:
        self._warn(
            f"{_name_of(self)}{signature.text} is not replayed: {reason}. "
            f"It runs as it would without compile."
        )

    def _warn(self, text: str) -> None:
        """At the line that called the function."""
        level, frame = 1, sys._getframe()
        while frame.f_back is not None and frame.f_code.co_filename == __file__:
            level, frame = level + 1, frame.f_back
        warnings.warn(f"torch_lazy.compile: {text}", CompileWarning, stacklevel=level)


WRAPPERS.add(CompiledFunction)


def _compiled(function: Callable[..., Any], options: dict[str, Any]) -> CompiledFunction:
    return CompiledFunction(function, **options)


def _name_of(function: CompiledFunction) -> str:
    return getattr(function, "__qualname__", repr(function.function))


def _collect(remains: Callable[[], bool]) -> bool:
    """Collects what reference cycles hold, the young first, while something remains that the call
    made. Whether nothing does."""
    for generation in (1, 2):
        if not remains():
            return True
        gc.collect(generation)
    return not remains()


# ---- What keeps a call from being replayed -------------------------------------------------------


def _state_obstacle(before: Reach, after: Reach, pure_hooks: bool) -> str:
    if after.too_much:
        return "it refers to too many objects to check them in every call"
    if after.opaque:
        return (
            f"{after.opaque}, whose content can change unseen; pass what the function needs of it "
            f"as an argument, or make it a tensor"
        )
    if after.hook and not pure_hooks:
        return (
            f"{after.hook} would not be called; if it does nothing but compute, say so with "
            f"torch_lazy.compile(..., pure_hooks=True)"
        )
    changed = after.changed_since(before)
    if changed:
        return (
            f"{changed} in the call; keep it in a tensor, change it outside of the function, or "
            f"pass it as an argument"
        )
    if not after.is_covered_by(before):
        return "it refers to objects that were not seen before the call"
    if after.rates() != before.rates():
        return "it changes a learning rate; step the scheduler outside of the function"
    return ""


def _result_obstacle(leaves: list[Any], known: set[int]) -> str:
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            if not _is_lazy(leaf):
                return "it returns a tensor that is not on the device lazy"
            if id(leaf) in known:
                continue
            if type(leaf) is not torch.Tensor:
                return f"it returns a {type(leaf).__name__}"
            if vars(leaf) or leaf._backward_hooks or post_hooks(leaf):
                return "it returns a tensor with attributes or hooks of its own"
            if leaf.is_leaf and leaf.grad is not None:
                return "it returns a tensor that it made, with its gradient"
    return ""


def _hooked(arguments: Sequence[torch.Tensor], known: Sequence[torch.Tensor]) -> str:
    """An obstacle: hooks that backward may have called, and that no replay looks at."""
    if any(tensor._backward_hooks or post_hooks(tensor) for tensor in arguments):
        return "an argument has hooks; call backward outside of the function"
    if any(map(_C.accumulator_has_hooks, known)):
        return "a tensor has hooks on the node that accumulates its gradient"
    return ""


def _kept_result(result: Any, reach: Reach, arguments: list[Any]) -> str:
    """An obstacle: a part of the result that a program may also find elsewhere, and change."""
    known = {id(part) for part in arguments}
    waiting = [result]
    while waiting:
        part = waiting.pop()
        if (isinstance(part, (list, dict)) or is_object(part)) and (
            id(part) in known or reach.has_seen(part)
        ):
            return f"it returns a {type(part).__name__} that is kept elsewhere, too; return a copy"
        if isinstance(part, (list, tuple)):
            waiting += part
        elif isinstance(part, dict):
            waiting += part.values()
        elif is_object(part):
            waiting += vars(part).values() if hasattr(part, "__dict__") else ()
    return ""


@contextlib.contextmanager
def said_to_be_compiling() -> Iterator[None]:
    """torch.compiler.is_compiling() answers yes."""
    compiler = torch.compiler
    before = compiler._is_compiling_flag
    compiler._is_compiling_flag = True
    try:
        yield
    finally:
        compiler._is_compiling_flag = before


def _is_lazy(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "lazy"


def _split(
    arguments: Sequence[torch.Tensor], reach: Reach
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The tensors a call knows: on the device, and plain ones; arguments before slots."""
    known = [tensor for tensor in arguments if _is_lazy(tensor)]
    hosts = [tensor for tensor in arguments if not _is_lazy(tensor)]
    return [*known, *reach.tensors.values()], [*hosts, *reach.hosts.values()]


_NO_GRAPH, _USED_UP, _NEEDED = range(3)


def graph_behind(tensor: torch.Tensor) -> int:
    """Whether there is an autograd graph, and whether backward has freed what it saved."""
    try:
        nodes = [tensor.grad_fn]
    except RuntimeError:
        return _NEEDED  # a view that was overwritten in a way autograd refuses
    if nodes == [None]:
        return _NO_GRAPH
    seen = set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        for name in _saved_names(type(node)):
            try:
                getattr(node, name)
            except RuntimeError:
                return _USED_UP
        nodes += [parent for parent, _ in node.next_functions]
    return _NEEDED


@functools.cache
def _saved_names(node_type: type) -> tuple[str, ...]:
    return tuple(name for name in dir(node_type) if name.startswith("_saved_"))


def compile(
    function: Callable[..., Any] | None = None,
    *,
    donate: Sequence[int | str] | int | str = (),
    pure_hooks: bool = False,
    is_compiling: bool = False,
    cache_size: int = 64,
) -> Any:
    """A function that does what `function` does, without Python once it has been recorded.

    `function` may be a whole training step: forward, backward, clipping, optimizer, any number of
    models. It takes and returns trees (tuples, lists, dicts) of tensors and other values. Works as
    a decorator, too.

    Args:
        donate: arguments (places or names) whose tensors the caller gives up: their memory is
            used again, and reading them afterwards raises an error.
        pure_hooks: hooks of modules and tensors do nothing but compute; without this a function
            that has some is called each time.
        is_compiling: torch.compiler.is_compiling() answers yes while the function is recorded.
            Libraries then leave out reads that only serve to warn or to choose a faster way; some
            also do less than they do in eager.
        cache_size: how many signatures are kept.
    """
    options = {
        "donate": donate,
        "pure_hooks": pure_hooks,
        "is_compiling": is_compiling,
        "cache_size": cache_size,
    }
    if function is None:
        return functools.partial(compile, **options)
    return CompiledFunction(function, **options)
