"""Programs whose calls are made twice: with the plain function on the CPU, and with the compiled
one on the device; what each call gives is compared.
"""

import torch

import torch_lazy

CALLS = 11
CHANGED_AT = 5


class Programs(list):
    """Of one test file. A program is make(compile, device), and returns a function of the number
    of the call, whose outcomes are compared."""

    def add(self, make):
        self.append(make)
        return make


def name_of(make):
    return make.__name__


def check(make):
    expected = _outcomes(make, lambda function: function, "cpu")
    assert _outcomes(make, torch_lazy.compile, "lazy") == expected


def _outcomes(make, wrap, device):
    torch.manual_seed(0)
    call = make(wrap, device)
    found = []
    for number in range(CALLS):
        try:
            outcome = call(number)
        except Exception as error:
            outcome = type(error).__name__
        if isinstance(outcome, torch.Tensor):
            outcome = outcome.detach().cpu().flatten().tolist()
        found.append(outcome)
    return found
