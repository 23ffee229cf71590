"""torch_lazy.compile: a function that is recorded a few times and then replayed without Python.

The function may be a whole training step. A call is recognised by its arguments (signature). What
it reads and writes besides them is found from the recording. Two calls in a row with equal
recordings are believed; what they depend on in the program's objects is checked before every
replay, and at calls 8, 16, 32, ... the function is run and compared again.
"""

import contextlib
import functools
import gc
import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves

from torch_lazy import _C
from torch_lazy.reach import Reach, reach_of

_REPLAYED, _INLINE, _TRACED, _VERIFIED = range(4)
_ATTEMPTS = 5
"""Calls of one signature within which two in a row have to be alike."""

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
    spec: TreeSpec
    obstacle: str
    learning_rates: list[float]


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

    def variant_for(self, args: tuple[Any, ...], **kwargs: Any) -> Any:
        """The recording that a call with these arguments would replay; None: there is none."""
        return self._calls.variant(args, kwargs)

    # ---- Recording -------------------------------------------------------------------------------

    def _trace(self, signature: Any, variant: Any, args: Any, kwargs: Any) -> Any:
        history = signature.record
        if history is None:
            history = signature.record = History()
        if history.given_up:
            return self.function(*args, **kwargs)
        result, attempt = self._record(args, kwargs)
        if variant is not None:
            self._verify(signature, history, variant, attempt)
        else:
            self._consider(signature, history, attempt)
        return result

    def _record(self, args: Any, kwargs: Any) -> tuple[Any, Attempt]:
        arguments = _C.call_tensors(args, kwargs)
        before = reach_of(self.function, args, kwargs)
        if before.optimizers:
            for optimizer in before.optimizers:
                keep_steps_on_device(optimizer)
            before = reach_of(self.function, args, kwargs)
        known, hosts = _split(arguments, before)
        recorder = _C.Recorder(known, hosts, self._donated(args, kwargs, known))
        compiling = said_to_be_compiling() if self._is_compiling else contextlib.nullcontext()
        try:
            with _HostReads(hosts, before) as reads, compiling:
                result = self.function(*args, **kwargs)
        except BaseException:
            recorder.abandon()  # whoever keeps the traceback keeps the recorder
            raise
        leaves, spec = tree_flatten(result)
        tensors = [leaf for leaf in leaves if _is_lazy(leaf)]
        graphs = [graph_behind(tensor) for tensor in tensors]
        if any(graphs):
            gc.collect()  # graphs of autograd in reference cycles hold tensors
        recording = recorder.finish(tensors, graphs)
        after = reach_of(self.function, args, kwargs)
        obstacle = (
            recording.obstacle
            or reads.obstacle
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
        return result, Attempt(recording, after, kept, is_tensor, spec, obstacle, before.rates())

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


# ---- Comparing calls -----------------------------------------------------------------------------


def _difference(a: Attempt, b: Attempt) -> str:
    """In what two calls differ, numbers aside; empty: in nothing."""
    if not b.reach.same_guards(a.reach):
        return "the objects that it refers to are replaced between calls"
    if a.spec != b.spec or len(a.leaves) != len(b.leaves):
        return "its results have another structure"
    for x, y in zip(a.leaves, b.leaves, strict=True):
        if x is not y and (type(x) is not type(y) or x != y):
            return f"its result is {x!r} in one call and {y!r} in another"
    return _C.recording_difference(a.recording, b.recording)


def _explain_numbers(
    a: Attempt, b: Attempt, rule: "NumberRule | None"
) -> tuple[str, "NumberRule | None"]:
    """Why two calls have other numbers: a reason against replaying, or a rule that gives them."""
    changed = _C.different_numbers(a.recording, b.recording)
    if rule is not None:
        predicted = dict(rule(b.learning_rates) or ())
        actual = b.recording.numbers
        if (
            predicted
            and set(changed) <= set(predicted)
            and all(actual[place] == number for place, number in predicted.items())
        ):
            return "", rule
    if not changed:
        return "", rule
    rule = NumberRule.learn(a, b, changed)
    if rule is None:
        unexplained = b.recording.number_place(changed[0])
        return (
            f"{unexplained} is another one in each call; make it a tensor that the function "
            f"changes, or pass it as an argument",
            None,
        )
    return "", rule


_FORMULAS: tuple[Callable[[float, float], float], ...] = (
    lambda rate, decay: rate,
    lambda rate, decay: -rate,
    lambda rate, decay: 1 - rate * decay,
    lambda rate, decay: rate * decay,
    lambda rate, decay: -(rate * decay),
    lambda rate, decay: 1 / rate,
    lambda rate, decay: -1 / rate,
)
"""What optimizers make of a learning rate and a weight decay before an operator gets it."""


class NumberRule(NamedTuple):
    """How numbers of a recording follow from learning rates, by what two calls have shown."""

    places: list[tuple[int, list[tuple[int, int]]]]
    """A number, and which formulas of which rates give it; all of them."""
    decays: list[float]

    def __call__(self, rates: Sequence[float]) -> list[tuple[int, float]] | None:
        numbers = []
        for place, candidates in self.places:
            values = {_FORMULAS[f](rates[i], self.decays[i]) for i, f in candidates}
            if len(values) != 1:
                return None  # two rates that were always equal are not any more
            numbers.append((place, values.pop()))
        return numbers

    @staticmethod
    def learn(a: Attempt, b: Attempt, changed: Sequence[int]) -> "NumberRule | None":
        decays = [float(group.get("weight_decay", 0)) for _, group in b.reach.numbers]
        before, after = a.recording.numbers, b.recording.numbers
        places = []
        for place in changed:
            candidates = [
                (i, f)
                for i, f in itertools.product(range(len(decays)), range(len(_FORMULAS)))
                if _FORMULAS[f](a.learning_rates[i], decays[i]) == before[place]
                and _FORMULAS[f](b.learning_rates[i], decays[i]) == after[place]
            ]
            if not candidates:
                return None
            places.append((place, candidates))
        return NumberRule(places, decays)


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
    variant.rebuild = None if attempt.spec.is_leaf() else _rebuild(attempt.spec)
    variant.numbers = None
    return variant


def _rebuild(spec: TreeSpec) -> Callable[[list[Any]], Any]:
    if spec.type is tuple and all(child.is_leaf() for child in spec.children()):
        return tuple
    return spec.unflatten


# ---- What keeps a call from being replayed -------------------------------------------------------


def _state_obstacle(before: Reach, after: Reach, pure_hooks: bool) -> str:
    if after.too_much:
        return "it refers to too many objects to check them in every call"
    if after.opaque:
        return f"{after.opaque}, whose content can change unseen; make it a tensor"
    if after.hook and not pure_hooks:
        return (
            f"{after.hook} would not be called; if it does nothing but compute, say so with "
            f"torch_lazy.compile(..., pure_hooks=True)"
        )
    changed = after.changed_value(before)
    if changed:
        path, old, new = changed
        return (
            f"{path} changes from {old!r} to {new!r} in the call; keep it in a tensor, change it "
            f"outside of the function, or pass it as an argument"
        )
    if not after.same_guards(before):
        return "it replaces objects that it refers to"
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


class _HostReads(TorchDispatchMode):
    """Sees whether a call computes with plain tensors: what it makes of them would not change."""

    def __init__(self, hosts: Sequence[torch.Tensor], reach: Reach) -> None:
        super().__init__()
        self.obstacle = ""
        self._hosts = {host.untyped_storage()._cdata: host for host in hosts}
        self._names = reach.names

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._hosts and not self.obstacle and not _only_moves(func):
            for leaf in tree_leaves((args, kwargs)):
                if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided:
                    self._look_at(func, leaf)
        return func(*args, **kwargs)

    def _look_at(self, func: Any, tensor: torch.Tensor) -> None:
        if tensor.device.type == "lazy" or tensor.device.type == "meta":
            return
        host = self._hosts.get(tensor.untyped_storage()._cdata)
        if host is not None:
            name = self._names.get(id(host), "an argument")
            self.obstacle = (
                f"{func} computes with {name}, which is on the {host.device.type} "
                f"({_C.first_user_frame().strip()}); move it to the device lazy first"
            )


def _only_moves(func: Any) -> bool:
    """Whether an operator makes views, or copies to another device: such data is followed."""
    return func in _MOVES or func.is_view


_MOVES = {
    torch.ops.aten._to_copy.default,
    torch.ops.aten.copy_.default,
    torch.ops.aten.detach.default,
    torch.ops.aten.alias.default,
}


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


def keep_steps_on_device(optimizer: torch.optim.Optimizer) -> None:
    """Has the optimizer count its steps in tensors on the device, where replays can count too."""
    for group in optimizer.param_groups:
        parameters = [p for p in group["params"] if _is_lazy(p)]
        if "capturable" not in group or not parameters:
            continue
        if not group.get("fused"):
            group["capturable"] = True
        for parameter in parameters:
            state = optimizer.state.get(parameter, {})
            count = state.get("step")
            if isinstance(count, torch.Tensor) and not _is_lazy(count):
                state["step"] = count.to(parameter.device)


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
