"""While torch.compile works, Python's garbage collector leaves alone what was there before.

PyTorch and what it imports are half a million objects. Compiling makes enough new ones for a look
at all of them, which takes 0.2 s, a tenth of a first step, and finds nothing.
"""

import gc
from typing import Any

_ours = False


def watch_compilations() -> None:
    """From now on, for every function that TorchDynamo compiles: it does not say for which backend.

    torch._dynamo.reset() forgets this; so it is said again with every graph.
    """
    from torch._dynamo import callback_handler, on_compile_end, on_compile_start

    if _set_aside not in callback_handler.start_callbacks:
        on_compile_start(_set_aside)
        on_compile_end(_take_back)


def _set_aside(_: Any) -> None:
    global _ours
    if gc.get_freeze_count() == 0:  # else somebody has, and wants to keep them there
        gc.freeze()
        _ours = True


def _take_back(_: Any) -> None:
    global _ours
    if _ours:
        gc.unfreeze()
        _ours = False
