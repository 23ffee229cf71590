"""What PyTorch leaves out while it compiles for our backend: work whose result nobody sees.

What it compiles for other backends is compiled as ever.
"""

import contextlib
import functools
import gc
import logging
import sys
from collections.abc import Iterator
from typing import Any

import torch

_our_backend: Any = None

_under_way = contextlib.ExitStack()
"""What to undo when the compilation ends. TorchDynamo holds a lock while it calls us."""


def take_shortcuts_for(backend: Any) -> None:
    """TorchDynamo tells us of its compilations, until torch._dynamo.reset() makes it forget us."""
    from torch._dynamo.callback import callback_handler

    global _our_backend
    _our_backend = backend
    if _begin not in callback_handler.start_callbacks:
        callback_handler.start_callbacks.append(_begin)
        callback_handler.end_callbacks.insert(0, _end)  # another's may fail, ours must be called


def _begin(compilation: Any) -> None:
    if _is_ours(_backend_in_use()):
        _under_way.enter_context(garbage_aside())
        _under_way.enter_context(_no_names_of_functions())
        _under_way.enter_context(_no_import_of_local_map())


def _end(compilation: Any) -> None:
    _under_way.close()


def _backend_in_use() -> Any:
    """What TorchDynamo compiles for, on this thread; it is in no other place than its frame.

    `backend_ctx_ctor`, by which a backend could tell us, is lost in torch.compile.
    """
    frame = sys._getframe()
    while frame is not None:
        in_dynamo = frame.f_globals.get("__name__") == "torch._dynamo.convert_frame"
        if in_dynamo and "compiler_fn" in frame.f_locals:
            return frame.f_locals["compiler_fn"]
        frame = frame.f_back
    return None


def _is_ours(backend: Any) -> bool:
    while hasattr(backend, "_torchdynamo_orig_backend"):
        backend = backend._torchdynamo_orig_backend
    backend = getattr(backend, "compiler_fn", backend)  # what torch.compile was given
    return backend is not None and backend is _our_backend


# ---- Shortcuts -----------------------------------------------------------------------------------


@contextlib.contextmanager
def garbage_aside() -> Iterator[None]:
    """Nobody looks for garbage among what exists already: a look at everything takes 0.2 s.

    The count of objects that makes the next look due begins anew; else it would come as soon as it
    may. What others have set aside stays.
    """
    aside = gc.get_freeze_count() == 0
    if aside:
        gc.freeze()
    try:
        yield
    finally:
        if aside:
            gc.unfreeze()


@contextlib.contextmanager
def no_garbage() -> Iterator[None]:
    """Nobody looks for garbage at all, as AOTAutograd makes little."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        with garbage_aside():
            yield
    finally:
        if enabled:
            gc.enable()


def _no_names_of_functions() -> contextlib.AbstractContextManager[None]:
    """TorchDynamo parses all files that it meets, 0.1 s, to name functions in its log."""
    from torch._dynamo import symbolic_convert

    if _has_log("torch._dynamo"):
        return contextlib.nullcontext()
    return _replaced(symbolic_convert, "get_funcname", lambda filename, line: None)


def _no_import_of_local_map() -> contextlib.AbstractContextManager[None]:
    """TorchDynamo imports a part of torch.distributed, 0.1 s, to see if a function is from there.

    It is not, where nobody else has imported that part.
    """
    from torch._dynamo.variables import higher_order_ops

    variable = getattr(higher_order_ops, "LocalMapWrappedHigherOrderVariable", None)
    original = getattr(variable, "should_wrap_in_hop", None)

    def should_wrap_in_hop(value: Any) -> bool:
        return "torch.distributed.tensor.experimental._func_map" in sys.modules and original(value)

    return _replaced(variable, "should_wrap_in_hop", staticmethod(should_wrap_in_hop))


def no_texts_of_graphs() -> contextlib.AbstractContextManager[None]:
    """AOTAutograd prints its graphs, 0.05 s, also where there is no log to print them to."""
    from torch._functorch import aot_autograd

    if torch._logging._internal.trace_log.handlers or _has_log("torch._functorch"):
        return contextlib.nullcontext()
    settings = functools.partial(aot_autograd.AOTConfig, enable_log=False)
    return _replaced(aot_autograd, "AOTConfig", settings)


def _has_log(part: str) -> bool:
    """Whether a part of PyTorch may have a log that somebody wants."""
    wanted = torch._logging._internal.log_state
    if wanted.artifact_names or wanted.log_qname_to_level:
        return True
    return logging.getLogger(part).isEnabledFor(logging.INFO)


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Nothing is replaced where this PyTorch does not have it."""
    original = getattr(owner, "__dict__", {}).get(name)
    if original is not None:
        setattr(owner, name, value)
    try:
        yield
    finally:
        if original is not None:
            setattr(owner, name, original)
