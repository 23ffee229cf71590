"""The operators that test_opinfo.py does not compare with eager bit by bit, each with its reason.

layout:   the values are undefined by definition; everything else is compared.
close:    eager's kernel itself does not give the same bits each time; compared within the given (rtol, atol).
refused:  torch-lazy raises an error that says so; the test checks that it does.
"""

import dataclasses


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
        operators=("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"),
        reason="returns uninitialised memory",
    ),
]


def exception_for(operator, kind):
    for entry in EXCEPTIONS:
        if operator in entry.operators and (not entry.kinds or kind in entry.kinds):
            return entry
    return None
