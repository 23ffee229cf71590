"""What PyTorch 2.6's test files expect of its test utilities and newer ones no longer have."""

import pathlib

from torch.testing._internal import (
    common_cuda,
    common_methods_invocations,
    common_mkldnn,
    common_nn,
    common_utils,
)
from torch.utils._dtype_abbrs import dtype_abbrs


def undecorated(*_, **__):
    """A decorator for what is not decided here: TF32, and lists of operators that fail anyway."""
    return lambda test: test


def provide(module, name, value):
    if not hasattr(module, name):
        setattr(module, name, value)


def provide_all():
    methods = common_methods_invocations
    provide(common_cuda, "tf32_is_not_fp32", lambda: False)
    provide(common_mkldnn, "bf32_on_and_off", undecorated)
    provide(common_utils, "dtype_abbrs", dtype_abbrs)
    provide(methods, "binary_ufuncs_and_refs", tuple(methods.binary_ufuncs))
    provide(methods, "skipOps", undecorated)
    provide(methods, "skip", lambda *_, **__: None)
    provide(methods, "xfail", lambda *_, **__: None)
    if not hasattr(common_nn, "new_module_tests"):
        common_nn.new_module_tests = common_nn.get_new_module_tests()


def source(path):
    """Newer utilities derive from the class of a file's tests, where 2.6's copied its members."""
    return pathlib.Path(path).read_text().replace("super(self.__class__, self)", "super()")
