"""Learning rates while a function is recorded, and the numbers that the program makes of them.

A replay follows a learning rate only where the program's own arithmetic, by operations known here,
makes a number of it and gives that to an operator. While a call is recorded, each group's rate is a
`Rate`: a float that remembers how it was computed. A rate that is looked at in any other way (a
comparison, a conversion, a library that reads it) is not followed: another value of it means
another recording.
"""

import collections
import gc
import sys
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from torch_lazy import _C
from torch_lazy.rate_reads import is_ours, reader_in, reads_floats
from torch_lazy.reach import Reach, slots_of

_Op = _C.FormulaOperation
_Steps = tuple[tuple[Any, float], ...]
"""A formula: operations on a stack, as C++ evaluates it (src/replay/number_rules.h)."""


class Rate(float):
    """A number that was computed from learning rates, as long as its recording lasts."""

    __slots__ = ("__weakref__", "_steps", "_used", "_watch")

    _steps: _Steps
    _used: bool
    _watch: "RateWatch"

    def __new__(cls, *value: Any) -> Any:
        """What a program makes with the type of a rate is a plain number."""
        return float(*value)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return float

    def __del__(self) -> None:
        if not self._used:  # whoever it was computed for has read it in a way that is not seen
            self._watch.look(self, "something that is not seen reads it")

    @property
    def real(self) -> float:
        return self.__pos__()

    @property
    def imag(self) -> float:
        return 0.0

    def __reduce_ex__(self, protocol: Any) -> Any:
        self._watch.look(self, "it is copied")
        return float, (float.__pos__(self),)

    def __copy__(self) -> float:
        self._watch.look(self, "it is copied")
        return float.__pos__(self)

    def __deepcopy__(self, memo: Any) -> float:
        return self.__copy__()


def _binary(name: str, operation: Any) -> None:
    """Arithmetic that is followed: with plain numbers and other rates."""
    plain = getattr(float, name)
    reflected = name.startswith("__r")

    def method(self: Rate, other: Any, *modulo: Any) -> Any:
        watch = self._watch
        kind = type(other)
        if kind is Rate and other._watch is watch:
            steps = other._steps
            other._used = True
            other = float.__pos__(other)
        elif kind is float or kind is int or kind is bool:
            try:
                steps = ((_Op.constant, float(other)),)
            except OverflowError:
                steps = None
        elif isinstance(other, torch.Tensor):
            return NotImplemented  # its own operator is asked next, and sees this rate
        else:
            watch.look(self, f"{name} with a {kind.__name__} looks at it")
            return NotImplemented if not isinstance(other, int) else plain(self, other)
        value = plain(self, other, *modulo)
        if type(value) is not float or modulo or steps is None:
            watch.look(self, f"{name} looks at it")
            return value
        self._used = True
        parts = (steps, self._steps) if reflected else (self._steps, steps)
        return watch.derived(value, (*parts[0], *parts[1], (operation, 0.0)))

    method.__name__ = name
    setattr(Rate, name, method)


def _look(name: str) -> None:
    """Anything else: the plain answer."""
    plain = getattr(float, name)

    def method(self: Rate, *arguments: Any) -> Any:
        self._watch.look(self, f"{name} looks at it")
        return plain(self, *(float.__pos__(a) if type(a) is Rate else a for a in arguments))

    method.__name__ = name
    setattr(Rate, name, method)


for _name, _operation in (
    ("add", _Op.add),
    ("sub", _Op.subtract),
    ("mul", _Op.multiply),
    ("truediv", _Op.divide),
    ("pow", _Op.power),
):
    _binary(f"__{_name}__", _operation)
    _binary(f"__r{_name}__", _operation)

for _name in (
    *("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__bool__", "__hash__"),
    *("__int__", "__float__", "__trunc__", "__floor__", "__ceil__", "__round__", "__abs__"),
    *("__floordiv__", "__rfloordiv__", "__mod__", "__rmod__", "__divmod__", "__rdivmod__"),
    *("__repr__", "__str__", "__format__", "__getnewargs__"),
    *("is_integer", "as_integer_ratio", "hex", "conjugate"),
):
    _look(_name)


def _negative(self: Rate) -> Any:
    self._used = True
    return self._watch.derived(float.__neg__(self), (*self._steps, (_Op.negate, 0.0)))


def _positive(self: Rate) -> Any:
    self._used = True
    return self._watch.derived(float.__pos__(self), self._steps)


Rate.__neg__ = _negative  # type: ignore[method-assign]
Rate.__pos__ = _positive  # type: ignore[method-assign]


class RateWatch(TorchFunctionMode):
    """Follows the learning rates of groups through one call."""

    def __init__(self, groups: Sequence[tuple[str, dict[str, Any]]], fixed: str) -> None:
        """`fixed`: why no rate can be followed; empty: they can."""
        super().__init__()
        self._groups = groups
        self.rates = [group["lr"] for _, group in groups]
        self.fixed = [fixed] * len(groups)
        """By rate: why it is not followed."""
        self.formulas: dict[_Steps, None] = {}
        """What was given to operators."""
        self._made: list[weakref.ref[Rate]] = []
        self._active = False
        self._entered = False
        self._profile: _ProfileOfReads | None = None

    def __enter__(self) -> "RateWatch":
        if not all(self.fixed):
            try:
                self._begin()
            except BaseException:
                self._finish()
                raise
        return self

    def __exit__(self, *error: Any) -> None:
        self._finish()

    def _begin(self) -> None:
        self._active = True
        super().__enter__()
        self._entered = True
        for i, (_, group) in enumerate(self._groups):
            group["lr"] = self._rate(self.rates[i], ((_Op.input, float(i)),))
        self._profile = _ProfileOfReads(self)
        self._profile.start()

    def _finish(self) -> None:
        profile, self._profile = self._profile, None
        if profile is not None:
            profile.stop()
        if self._entered:
            self._entered = False
            super().__exit__(None, None, None)
        self._active = False
        for i, (_, group) in enumerate(self._groups):
            now = group.get("lr")
            if type(now) is Rate:
                own = now._steps == ((_Op.input, float(i)),)
                group["lr"] = self.rates[i] if own else float.__pos__(now)

    def end(self, leaves: list[Any]) -> bool:
        """After the call: rates that something still has become plain floats and are not followed.

        So do those among the `leaves` of its result; whether there are any.
        """
        returned = False
        for i, leaf in enumerate(leaves):
            if type(leaf) is Rate:
                returned = True
                self._fix(leaf, "it is returned")
                leaves[i] = float.__pos__(leaf)
        leaf = None
        for reference in self._made:
            rate = reference()
            if rate is not None:
                self._fix(rate, "it is kept in another place")
                _make_plain(rate)
        return returned

    def sources(self) -> tuple[list[float], list[_Steps]]:
        """The rates that are followed, and what the program made of them and gave to operators."""
        followed = [i for i, fixed in enumerate(self.fixed) if not fixed]
        place = {i: float(k) for k, i in enumerate(followed)}

        def step(operation: Any, operand: float) -> tuple[Any, float]:
            if operation != _Op.input:
                return operation, operand
            i = int(operand)
            return (operation, place[i]) if i in place else (_Op.constant, self.rates[i])

        formulas = [tuple(step(*parts) for parts in steps) for steps in self.formulas]
        return [self.rates[i] for i in followed], formulas

    # ---- Told by rates ---------------------------------------------------------------------------

    def derived(self, value: float, steps: _Steps) -> float:
        return self._rate(value, steps) if self._active else value

    def look(self, rate: Rate, how: str) -> None:
        rate._used = True
        if self._active:
            self._fix(rate, how)

    def _rate(self, value: float, steps: _Steps) -> Rate:
        rate = float.__new__(Rate, value)
        rate._steps = steps
        rate._used = len(steps) == 1  # a group's own: it may well be that nobody needs it
        rate._watch = self
        self._made.append(weakref.ref(rate))
        return rate

    def _fix(self, rate: Rate, reason: str) -> None:
        where = None
        for operation, operand in rate._steps:
            if operation == _Op.input and not self.fixed[int(operand)]:
                if where is None:
                    where = _user_line() if self._active else ""
                self.fixed[int(operand)] = f"{reason} ({where})" if where else reason

    def fix_all(self, reason: str) -> None:
        self.fixed = [fixed or reason for fixed in self.fixed]

    # ---- Told by PyTorch -------------------------------------------------------------------------

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = [*_rates_in(args), *_rates_in(kwargs.values())]
        if not given:
            return func(*args, **kwargs)
        result = func(*args, **kwargs)
        known = (not isinstance(func, _FunctionType) or func in _PASS_ON) and func not in _UPLOADS
        if not known or not any(map(_is_on_device, (*args, *kwargs.values(), result))):
            for rate in given:
                self.look(rate, f"{getattr(func, '__qualname__', 'a function')} looks at it")
            return result
        for rate in given:
            rate._used = True
            self.formulas[rate._steps] = None
        return result


def _user_line() -> str:
    """The line of the program that is being executed."""
    frame = sys._getframe(1)
    while frame is not None and is_ours(frame.f_code):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else ""


_FunctionType = types.FunctionType

_PASS_ON = {
    torch.Tensor.__rsub__,
    torch.Tensor.__rdiv__,
    torch.Tensor.__rpow__,
}
"""Functions of PyTorch in Python that give a number to operators as it is."""

_UPLOADS = {torch.tensor, torch.as_tensor, torch.asarray, torch.Tensor.new_tensor}
"""Functions that make data of a number, which a replay does not make anew."""


def _rates_in(values: Any) -> Iterator[Rate]:
    for value in values:
        if type(value) is Rate:
            yield value
        elif type(value) is list or type(value) is tuple:
            yield from (item for item in value if type(item) is Rate)


def _is_on_device(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_is_on_device, value))
    return isinstance(value, torch.Tensor) and value.device.type == "lazy"


def _make_plain(rate: Rate) -> None:
    """Puts a plain float where something of the program's has this rate."""
    value = float.__pos__(rate)
    _replace(rate, value, _MOST_NESTED)


_MOST_NESTED = 4


def _replace(old: Any, new: Any, depth: int) -> None:
    """In lists, dicts, deques, cells and slots, and in tuples inside of these.

    Without comprehensions: before Python 3.12 these would hold `old` in a cell of our own.
    """
    for holder in gc.get_referrers(old):
        kind = type(holder)
        if kind in (list, collections.deque):
            for i, item in enumerate(holder):
                if item is old:
                    holder[i] = new
        elif issubclass(kind, dict):
            for key, item in list(dict.items(holder)):
                if item is old:
                    dict.__setitem__(holder, key, new)
        elif kind is types.CellType:
            holder.cell_contents = new
        elif issubclass(kind, tuple):
            if depth and (kind is tuple or hasattr(kind, "_make")):
                items = list(tuple.__iter__(holder))
                for i, item in enumerate(items):
                    if item is old:
                        items[i] = new
                _replace(holder, tuple.__new__(kind, items), depth - 1)
        else:
            for _, slot in slots_of(kind):
                try:
                    item = slot.__get__(holder)
                except AttributeError:
                    continue
                if item is old:
                    slot.__set__(holder, new)


def fix_rates(reach: Reach, reasons: Sequence[str]) -> None:
    """Rates for which there are reasons are guarded by their values."""
    fixed = {id(g) for (_, g), reason in zip(reach.numbers, reasons, strict=False) if reason}
    number, equal = _C.GuardMode.number, _C.GuardMode.equal
    for i, (kind, container, items, size, watched) in enumerate(reach.guards):
        if id(container) in fixed:
            changed = [(k, v, equal if mode == number else mode) for k, v, mode in items]
            reach.guards[i] = (kind, container, changed, size, watched)


# ---- Reads that no method shows ------------------------------------------------------------------


def handles_rates(frame: types.FrameType) -> bool:
    """Whether code may have a learning rate in its hands: a local variable, or by its name."""
    code = frame.f_code
    if _names_rates(code):
        return True
    return any(map(_holds_rate, frame.f_locals.values()))


def _holds_rate(value: Any) -> bool:
    """A rate, or a container of the program's with one; no code of the program's runs."""
    kind = type(value)
    items: Any = (value,)
    for base in (dict, list, tuple):
        if issubclass(kind, base):
            items = dict.values(value) if base is dict else base.__iter__(value)
    return next(_rates_in(items), None) is not None


def _names_rates(code: types.CodeType) -> bool:
    return "lr" in code.co_consts or "param_groups" in code.co_names


class _ProfileOfReads:
    """Sees the C functions that are called where a learning rate may be their argument."""

    def __init__(self, watch: RateWatch) -> None:
        self._watch = watch
        self._readers: dict[types.CodeType, str] = {}
        self._before: Callable[..., Any] | None = None
        self._on = False

    def start(self) -> None:
        self._before = sys.getprofile()
        if self._before is None or isinstance(self._before, types.FunctionType | types.MethodType):
            self._on = True
            sys.setprofile(self._event)
        else:
            self._watch.fix_all("a profiler of C runs, beside which reads are not seen")

    def stop(self) -> None:
        if self._on:
            self._on = False
            sys.setprofile(self._before)

    def _event(self, frame: types.FrameType, event: str, argument: Any) -> None:
        if event == "c_call":
            self.c_call(frame, argument)
        elif event == "call":
            self.call(frame)
        if self._before is not None:
            self._before(frame, event, argument)

    def c_call(self, frame: types.FrameType, function: Any) -> None:
        """A C function is about to be called by a frame."""
        if reads_floats(function) and not is_ours(frame.f_code) and handles_rates(frame):
            self._watch.fix_all(
                f"{getattr(function, '__qualname__', function)} may read it "
                f"({frame.f_code.co_filename}:{frame.f_lineno})"
            )

    def call(self, frame: types.FrameType) -> None:
        """Python code begins to run. Types of C, and `%`, read without an event."""
        code = frame.f_code
        reader = self._readers.get(code)
        if reader is None:
            reader = self._readers[code] = reader_in(code, frame)
        if reader and handles_rates(frame):
            self._watch.fix_all(f"{reader} may read it ({code.co_filename}, {code.co_name})")
