"""A few hundred random programs; random_programs.py runs as many as you like."""

import pytest
import random_programs
from comparing import DEVICE

PROGRAMS = 600
PART = 20


@pytest.mark.usefixtures("nothing_pending")
@pytest.mark.parametrize("first", range(0, PROGRAMS, PART))
def test_programs(first):
    for seed in range(first, first + PART):
        failure = random_programs.test_seed(seed)
        assert failure is None, f"\n{failure}"


def test_a_difference_is_found_and_minimised(monkeypatch):
    """The tester can fail: a device whose mul_ does nothing is found out, with a short program."""
    honest = random_programs.Machine.run

    def broken(machine, line):
        if machine.env["device"] == DEVICE and machine.broken and ".mul_(" in line:
            line = line.partition(".mul_(")[0]
        return honest(machine, line)

    machines = []

    class Machine(random_programs.Machine):
        def __init__(self, device):
            super().__init__(device)
            machines.append(self)
            self.broken = (
                len(machines) % 2 == 0
            )  # run_program makes eager's machine, then the device's

        run = broken

    monkeypatch.setattr(random_programs, "Machine", Machine)
    lines = [
        "t1 = torch.ones([3], device=device)",
        "t2 = t1 + 1",
        "t3 = t1[1:]",
        "t3.mul_(2)",
        "t4 = t2 * 2",
    ]
    assert random_programs.run_program(lines) is not None
    assert random_programs.minimise(lines, 0, random_programs.run_program) == [
        lines[0],
        lines[2],
        lines[3],
    ]
