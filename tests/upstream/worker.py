"""Runs tests of one of PyTorch's test files on one device, in a process of its own (see run.py).

    worker.py FOLDER FILE cpu|lazy          prints the names of the file's device-generic tests
    worker.py FOLDER FILE cpu|lazy RESULTS  runs those named on stdin, one JSON line per event

Names are those of the device lazy on both devices, so that verdicts can be compared.
"""

import contextlib
import importlib.util
import json
import os
import re
import sys
import time
import traceback
import unittest
import warnings

import torch
from names_of_2_6 import provide_all, source
from torch.testing._internal import common_device_type, common_utils

FOLDER, FILE, DEVICE = sys.argv[1:4]
RESULTS = sys.argv[4] if len(sys.argv) > 4 else None

if DEVICE == "lazy":
    import torch._lazy  # PyTorch's helpers take a step there, by the name of the device

    import torch_lazy

    torch_lazy.install_as_torch_lazy()

torch.set_num_threads(1)


class LAZYTestBase(common_device_type.DeviceTypeTestBase):
    """Computes on the CPU: what PyTorch's tests say about the CPU's dtypes holds here too."""

    device_type = "lazy"

    @classmethod
    def get_primary_device(cls):
        return "lazy:0"  # as tensors print it; "cuda:0" is CUDA's

    @classmethod
    def _get_dtypes(cls, test):
        if "cpu" in getattr(test, "dtypes", {}):
            return test.dtypes["cpu"]
        return super()._get_dtypes(test)

    def _should_stop_test_suite(self):
        return False


def treat_lazy_as_a_device_of_pytorch():
    """What PyTorch's test utilities decide by lists of devices."""
    base = LAZYTestBase if DEVICE == "lazy" else common_device_type.CPUTestBase

    def bases(except_for=None, only_for=None, *_, **__):
        # What is only for the CPU is about its memory or its kernels.
        only = [only_for] if isinstance(only_for, str) else list(only_for or [])
        wanted = not only or ("cpu" in only and len(only) > 1)
        return [base] if wanted and "cpu" not in (except_for or []) else []

    def enough_memory(device, size):
        return size <= 2 << 30

    common_device_type.get_desired_device_type_test_bases = bases
    common_device_type._has_sufficient_memory = enough_memory
    if DEVICE != "lazy":
        return
    for module in (common_device_type, common_utils):
        module.NATIVE_DEVICES = (*module.NATIVE_DEVICES, "lazy")

    # Skips and tolerances that operators' descriptions have for the CPU.
    from torch.testing._internal.opinfo import core

    is_active = core.DecorateInfo.is_active

    def is_active_for_the_cpu(self, cls_name, test_name, device_type, dtype, param_kwargs):
        device_type = "cpu" if device_type == "lazy" else device_type
        return is_active(self, cls_name, test_name, device_type, dtype, param_kwargs)

    core.DecorateInfo.is_active = is_active_for_the_cpu


def load():
    """Device-generic tests by their name on lazy."""
    path = os.path.join(FOLDER, FILE)
    sys.path[:0] = [os.path.dirname(path), FOLDER]
    os.chdir(FOLDER)
    spec = importlib.util.spec_from_file_location(os.path.basename(FILE).removesuffix(".py"), path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    exec(compile(source(path), path, "exec"), vars(module))
    tests = {}
    suffix = DEVICE.upper()
    for name, cls in sorted(vars(module).items()):
        if not (isinstance(cls, type) and issubclass(cls, common_device_type.DeviceTypeTestBase)):
            continue
        if not name.endswith(suffix) or cls.device_type != DEVICE:
            continue
        for method in unittest.defaultTestLoader.getTestCaseNames(cls):
            # The device is named last, before dtypes; a test may have the word in its own name.
            renamed = re.sub(rf"(.*)_{DEVICE}(?=_|$)", r"\1_lazy", method, count=1)
            tests[f"{name.removesuffix(suffix)}LAZY.{renamed}"] = cls(method)
    return tests


class Result(unittest.TestResult):
    """Writes what begins and how it ends; the parent reads the file when the process has died."""

    def __init__(self, names, file):
        super().__init__()
        self.names, self.file = names, file
        self.verdict, self.message = "pass", ""
        self.class_error = ""

    def write(self, **event):
        self.file.write(json.dumps(event) + "\n")
        self.file.flush()

    def startTest(self, test):
        super().startTest(test)
        self.verdict, self.message = "pass", ""
        self.began = time.monotonic()
        self.write(begin=self.names[test.id()])

    def stopTest(self, test):
        super().stopTest(test)
        if DEVICE == "lazy":
            clean_up()
        self.write(
            name=self.names[test.id()],
            verdict=self.verdict,
            message=self.message,
            seconds=round(time.monotonic() - self.began, 2),
        )

    def failed(self, error):
        self.verdict = "fail"
        if not self.message:
            self.message = describe(error)

    def addError(self, test, err):
        if isinstance(test, unittest.TestCase):
            self.failed(err)
        else:
            self.class_error = describe(err)  # of setUpClass: none of its tests has begun

    def addFailure(self, test, err):
        self.failed(err)

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self.failed(err)

    def addSkip(self, test, reason):
        if self.verdict == "pass":
            self.verdict, self.message = "skip", reason

    def addUnexpectedSuccess(self, test):
        self.verdict, self.message = "fail", "unexpected success"


def describe(error):
    """The error, and the line of the test file that it came from."""
    kind, value, trace = error
    lines = [f.lineno for f in traceback.extract_tb(trace) if f.filename.endswith(FILE)]
    text = "".join(traceback.format_exception_only(kind, value)).strip()
    text = text.split("\n\nTo execute this test")[0]
    return f"line {lines[-1] if lines else '?'}: {text[:1500]}"


def clean_up():
    """What a test left pending is not the next one's error."""
    with contextlib.suppress(Exception):
        torch_lazy.sync()


def main():
    provide_all()
    treat_lazy_as_a_device_of_pytorch()
    warnings.simplefilter("ignore")
    tests = load()
    if RESULTS is None:
        print(json.dumps(list(tests)))
        return
    names = {test.id(): name for name, test in tests.items()}
    chosen = [name for name in sys.stdin.read().split() if name in tests]
    with open(RESULTS, "a") as file:
        result = Result(names, file)
        for cls in dict.fromkeys(type(tests[name]) for name in chosen):
            of_class = [name for name in chosen if type(tests[name]) is cls]
            result.class_error = ""
            unittest.TestSuite([tests[name] for name in of_class]).run(result)
            if result.class_error:
                for name in of_class:
                    result.write(name=name, verdict="fail", message=result.class_error, seconds=0)
        result.write(done=True)
        file.flush()
    os._exit(0)  # what is left in the process is not what is tested


if __name__ == "__main__":
    main()
