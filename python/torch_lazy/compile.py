"""torch_lazy.compile: a function that is recorded a few times and then replayed without Python.

The function may be a whole training step. A call is recognised by its arguments (signature). What
it reads and writes besides them is found from the recording. Two calls in a row with equal
recordings are believed; what they depend on in the program's objects is checked before every
replay, and at calls 8, 16, 32, ... the function is run and compared again.
"""

import collections
import contextlib
import functools
import gc
import warnings
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_leaves

from torch_lazy import _C
from torch_lazy.device_steps import StepsOnDevice, keep_steps_on_device
from torch_lazy.host_reads import HostReads, load_modes
from torch_lazy.observe import Observed, Observer, merged
from torch_lazy.rates import RateWatch, constant, evaluate, fix_rates
from torch_lazy.reach import WRAPPERS, Reach, reach_of
from torch_lazy.results import Shape, leaf_difference

_REPLAYED, _INLINE, _TRACED, _VERIFIED = range(4)
_ATTEMPTS = 5
"""Calls of one signature within which two in a row have to be alike."""

_OTHER_CALL = (
    "it changes the tree of its arguments, or leaves a mode such as no_grad on; do that outside of "
    "the function"
)

_OBSERVED = 4
"""Recorded calls from which it is expected what the next one will use."""

_VARIANTS = 8
"""Recordings of one signature: for training and evaluation, with and without gradients."""


class CompileWarning(UserWarning):
    """A compiled function is not replayed, or was replayed where it should not have been."""


class Attempt(NamedTuple):
    """One recorded call."""

    recording: Any
    reach: Reach
    leaves: list[Any]
    """Of its result; tensors on the device are left out."""
    is_tensor: list[bool]
    shape: Shape
    obstacle: str
    learning_rates: list[float]
    fixed_rates: list[str]
    """By rate: why another one means another recording; empty: it is followed."""
    formulas: list[Any]
    """What the program made of the rates and gave to operators."""


class History:
    """What is known of the calls with one signature."""

    def __init__(self) -> None:
        self.attempts = 0
        self.last: Attempt | None = None
        self.given_up = ""
        """Why the function is called each time; empty: it may yet be replayed."""


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
        self.function = function
        self._donate = tuple([donate] if isinstance(donate, (int, str)) else donate)
        self._pure_hooks = pure_hooks
        self._is_compiling = is_compiling
        self._observed: collections.deque[Observed] = collections.deque(maxlen=_OBSERVED)
        self._optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        """Those that count their steps on the device."""
        self._said_new_objects = False
        self._calls = _C.CompiledCalls(cache_size)
        self._call = self._calls.call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        outcome, value, variant = self._call(args, kwargs)
        if outcome == _REPLAYED:
            return value
        if outcome == _INLINE:
            return self.function(*args, **kwargs)
        return self._trace(value, variant, args, kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """As a method: bound to its object, whose state is found like that of a closure."""
        return self if instance is None else functools.partial(self, instance)

    # ---- What a user may ask ---------------------------------------------------------------------

    def cache_info(self) -> list[dict[str, Any]]:
        """A row for each signature: its tensors, calls, whether it is replayed, and if not why."""
        rows = []
        for signature in self._calls.signatures:
            history = signature.record or History()
            rows.append(
                {
                    "signature": signature.text,
                    "recorded": history.attempts,
                    "replayed": bool(signature.variants),
                    "calls": sum(variant.calls for variant in signature.variants),
                    "operators": [variant.recording.nodes for variant in signature.variants],
                    "reason": history.given_up or (history.last.obstacle if history.last else ""),
                }
            )
        return rows

    def cache_clear(self) -> None:
        """Forgets all recordings; the next calls are recorded anew."""
        self._calls.clear()

    def anew(self) -> "CompiledFunction":
        """The same function with the same options, and no recordings."""
        return CompiledFunction(
            self.function,
            donate=self._donate,
            pure_hooks=self._pure_hooks,
            is_compiling=self._is_compiling,
        )

    def variant_for(self, args: tuple[Any, ...], **kwargs: Any) -> Any:
        """The recording that a call with these arguments would replay; None: there is none."""
        return self._calls.variant(args, kwargs)

    # ---- Recording -------------------------------------------------------------------------------

    def _trace(self, signature: Any, variant: Any, args: Any, kwargs: Any) -> Any:
        history = signature.record
        if history is None:
            history = signature.record = History()
            if signature.obstacle:
                history.given_up = signature.obstacle
                if not self._said_new_objects:
                    self._said_new_objects = True
                    self._give_up(signature, history, signature.obstacle)
        if history.given_up:
            with StepsOnDevice(self._optimizers):
                return self.function(*args, **kwargs)
        result, attempt = self._record(signature, args, kwargs)
        if attempt.recording.untimely:
            return result  # says nothing about the function
        if variant is not None:
            self._verify(signature, history, variant, attempt)
        else:
            self._consider(signature, history, attempt)
        return result

    def _record(self, signature: Any, args: Any, kwargs: Any) -> tuple[Any, Attempt]:
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
        rates = RateWatch(before.numbers)
        recorder = None
        try:
            recorder = _C.Recorder(known, hosts, donated)
            steps = StepsOnDevice(before.optimizers)
            observer = Observer()
            with steps, HostReads(before.names) as reads, compiling, rates, observer:
                result = self.function(*args, **kwargs)
            leaves: list[Any] = []
            shape = Shape(result, leaves)
            if rates.end(leaves):
                result = shape.make(iter(leaves))
            recording = _finish(recorder, leaves)
        finally:
            if recorder is not None:
                recorder.abandon()  # whoever keeps a traceback keeps the recorder
        observed = observer.result()
        after = reach_of(self.function, args, kwargs, observed)
        self._observed.append(observed)
        obstacle = (
            recording.obstacle
            or reads.obstacle
            or reads.without_operator(observer.host_reads)
            or observed.obstacle
            or ("" if signature.is_of(args, kwargs) else _OTHER_CALL)
            or _state_obstacle(before, after, self._pure_hooks)
            or _result_obstacle(leaves, {id(tensor) for tensor in known})
        )
        if "reads a number" in obstacle and not self._is_compiling:
            obstacle += (
                "; if that line leaves the read out under torch.compile, "
                "torch_lazy.compile(..., is_compiling=True) helps"
            )
        is_tensor = [_is_lazy(leaf) for leaf in leaves]
        kept = [None if lazy else leaf for leaf, lazy in zip(leaves, is_tensor, strict=True)]
        fix_rates(after, rates.fixed)
        made = list(rates.formulas)
        return result, Attempt(
            recording, after, kept, is_tensor, shape, obstacle, rates.rates, rates.fixed, made
        )

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

    # ---- Trust -----------------------------------------------------------------------------------

    def _consider(self, signature: Any, history: History, attempt: Attempt) -> None:
        history.attempts += 1
        last, history.last = history.last, attempt
        reason = attempt.obstacle
        if not reason and last is not None and not last.obstacle:
            rule = None
            reason = _difference(last, attempt)
            if not reason:
                reason, rule = _explain_numbers(last, attempt, None)
            if not reason:
                variant = _make_variant(attempt)
                variant.numbers = rule
                signature.variants = [variant, *signature.variants][:_VARIANTS]
                history.attempts = 0
                history.last = None
                return
        if history.attempts >= _ATTEMPTS:
            self._give_up(signature, history, reason or "no two calls in a row were alike")

    def _verify(self, signature: Any, history: History, variant: Any, attempt: Attempt) -> None:
        recorded: Attempt = variant.attempt
        reason = attempt.obstacle or _difference(recorded, attempt)
        rule = variant.numbers
        if not reason:
            reason, rule = _explain_numbers(recorded, attempt, rule)
        if not reason:
            if rule is not variant.numbers:
                _set_attempt(variant, attempt)
                variant.numbers = rule
            return
        signature.variants = [v for v in signature.variants if v is not variant]
        since = variant.calls // 2 if variant.calls >= 8 else 0
        replayed = (
            f" Calls {since + 1} to {variant.calls - 1} were replayed as recorded." if since else ""
        )
        self._give_up(signature, history, reason, replayed)

    def _give_up(self, signature: Any, history: History, reason: str, more: str = "") -> None:
        history.given_up = reason
        history.last = None
        name = getattr(self, "__qualname__", repr(self.function))
        warnings.warn(
            f"torch_lazy.compile: {name}{signature.text} is not replayed: {reason}.{more} "
            f"It runs as it would without compile.",
            CompileWarning,
            stacklevel=5,
        )


WRAPPERS.add(CompiledFunction)


def _finish(recorder: Any, leaves: list[Any]) -> Any:
    tensors = [leaf for leaf in leaves if _is_lazy(leaf)]
    graphs = [graph_behind(tensor) for tensor in tensors]
    if any(graphs):
        gc.collect()  # graphs of autograd in reference cycles hold tensors
    return recorder.finish(tensors, graphs)


# ---- Comparing calls -----------------------------------------------------------------------------


def _difference(a: Attempt, b: Attempt) -> str:
    """In what two calls differ, numbers aside; empty: in nothing."""
    for x, y, fixed in zip(
        a.learning_rates, b.learning_rates, map(max, a.fixed_rates, b.fixed_rates), strict=False
    ):
        if fixed and x != y:
            return f"a learning rate has changed that replays cannot follow: {fixed}"
    changed = b.reach.same_guards(a.reach)
    if changed:
        return f"{changed} between calls"
    if a.shape != b.shape or a.is_tensor != b.is_tensor:
        return "its results have another structure"
    for x, y in zip(a.leaves, b.leaves, strict=True):
        reason = leaf_difference(x, y)
        if reason:
            return reason
    return _C.recording_difference(a.recording, b.recording)


def _explain_numbers(
    a: Attempt, b: Attempt, rule: "NumberRule | None"
) -> tuple[str, "NumberRule | None"]:
    """Why two calls have other numbers: a reason against replaying, or a rule that gives them."""
    if list(map(bool, a.fixed_rates)) != list(map(bool, b.fixed_rates)) or a.formulas != b.formulas:
        return "it makes its numbers of its learning rates in another way in each call", None
    changed = set(_C.different_numbers(a.recording, b.recording))
    if rule is not None:
        predicted = dict(rule.numbers(b.learning_rates) or ())
        actual = b.recording.numbers
        if changed <= set(predicted) and all(
            actual[place] == number for place, number in predicted.items()
        ):
            return "", rule
    if a.learning_rates == b.learning_rates and not changed:
        return "", rule
    rule = NumberRule.learn(a, b, changed)
    if rule is None:
        unexplained = b.recording.number_place(min(changed))
        return (
            f"{unexplained} is another one in each call; make it a tensor that the function "
            f"changes, or pass it as an argument",
            None,
        )
    return "", rule


class NumberRule(NamedTuple):
    """How numbers of a recording follow from learning rates: by what the program makes of these."""

    places: list[tuple[int, list[Any]]]
    """A number, and the formulas that gave it in all recorded calls."""
    rates: list[float]
    """Those of the recording."""
    followed: list[int]
    """The rates that are: those of the guards."""

    def __call__(self, followed: Sequence[float]) -> list[tuple[int, float]] | None:
        rates = list(self.rates)
        for i, rate in zip(self.followed, followed, strict=True):
            rates[i] = rate
        return self.numbers(rates)

    def numbers(self, rates: Sequence[float]) -> list[tuple[int, float]] | None:
        numbers = []
        for place, formulas in self.places:
            values = {evaluate(formula, rates) for formula in formulas}
            if len(values) != 1 or None in values:
                return None  # two rates that were always equal are not any more
            numbers.append((place, values.pop()))
        return numbers

    @staticmethod
    def learn(a: Attempt, b: Attempt, changed: Collection[int]) -> "NumberRule | None":
        before, after = a.recording.numbers, b.recording.numbers
        values = [
            (formula, evaluate(formula, a.learning_rates), evaluate(formula, b.learning_rates))
            for formula in b.formulas
        ]
        places = []
        for place, (x, y) in enumerate(zip(before, after, strict=True)):
            formulas = [f for f, u, v in values if u is not None and u == x and v == y]
            if place in changed:
                if not formulas:
                    return None
                places.append((place, formulas))
            elif formulas:  # it may also be always the same
                places.append((place, [*formulas, constant(y)]))
        followed = [i for i, fixed in enumerate(b.fixed_rates) if not fixed]
        return NumberRule(places, b.learning_rates, followed)


def _set_attempt(variant: Any, attempt: Attempt) -> None:
    variant.attempt = attempt
    variant.recording = attempt.recording
    variant.set_guards(attempt.reach.guards)


def _make_variant(attempt: Attempt) -> Any:
    variant = _C.Variant(attempt.recording, attempt.reach.guards)
    variant.attempt = attempt
    variant.slots = list(attempt.reach.tensors.values())
    variant.slot_hosts = list(attempt.reach.hosts.values())
    variant.results = attempt.leaves
    variant.is_tensor = attempt.is_tensor
    variant.rebuild = None if attempt.shape.is_leaf() else attempt.shape.rebuild()
    variant.numbers = None
    return variant


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
            if type(leaf) is not torch.Tensor and id(leaf) not in known:
                return f"it returns a {type(leaf).__name__}"
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
