"""The operators that test_opinfo.py does not compare with eager bit by bit, each with its reason.

layout:   the values are undefined by definition; everything else is compared.
close:    eager's kernel itself gives other bits from call to call; compared within (rtol, atol).
refused:  torch-lazy raises an error that says so; the test checks that it does.
not run:  the sample means something else on a device that is not the CPU, in eager too.
on cpu:   eager wants these arguments on the CPU whatever the device of the others; they stay there.
"""

import dataclasses

from comparing import COMPILED


@dataclasses.dataclass(frozen=True)
class Exceptional:
    how: str
    operators: tuple
    reason: str
    kinds: tuple = ()  # empty: all kinds
    close: tuple = (0.0, 0.0)
    message: str = ""  # refused: a regular expression for the error


EXCEPTIONS = [
    Exceptional(
        how="layout",
        operators=(
            "empty",
            "empty_like",
            "empty_permuted",
            "empty_strided",
            "new_empty",
            "new_empty_strided",
        ),
        reason="returns uninitialised memory",
    ),
    Exceptional(
        how="close",
        operators=("linalg.lstsq", "linalg.lstsq.grad_oriented"),
        reason="LAPACK's least squares give other bits from call to call, in eager too",
        close=(1e-4, 1e-4),
    ),
    Exceptional(
        how="close",
        operators=(
            "nn.functional.linear_cross_entropy.chunked",
            "nn.functional.linear_cross_entropy.chunked_none",
        ),
        reason="PyTorch picks the type to accumulate in by the device's name: float32 for cpu only",
        kinds=("forward bfloat16",),
        close=(2e-2, 2e-2),
    ),
    Exceptional(
        how="refused",
        operators=("sparse.sampled_addmm", "sparse.mm.reduce"),
        reason="their arguments are sparse: the device holds strided tensors only",
        message="(?i)sparse|compressed",
    ),
    Exceptional(
        how="refused",
        operators=("to_sparse",),
        reason="its result is sparse: the device holds strided tensors only",
        message="gives a Sparse tensor",
    ),
    Exceptional(
        how="on cpu",
        operators=("tensor_split",),
        reason="indices given as a tensor decide the number of results",
    ),
    Exceptional(
        how="not run",
        operators=("tril", "triu", "lu_unpack", "linalg.lu"),
        reason="eager writes out of bounds when out= has batches and is not contiguous",
        kinds=("out= strided",),
    ),
    Exceptional(
        how="not run",
        operators=("NumpyExpMarkDirtyAutogradFunction",),
        reason="writes into x.cpu().numpy(), which is x's own memory on the CPU only",
    ),
]
if COMPILED:
    EXCEPTIONS.append(
        Exceptional(
            how="not run",
            operators=("nn.functional.gelu",),
            reason="eager's kernel leaves an out= alone that is not contiguous (PyTorch 2.13)",
            kinds=("out= strided",),
        )
    )


def exception_for(operator, kind):
    for entry in EXCEPTIONS:
        if operator in entry.operators and (not entry.kinds or kind in entry.kinds):
            return entry
    return None
