"""Random tensor programs, as lines of Python. Each line is tried on eager while the program grows.

A line uses `torch`, `device`, `read(value)`, `sync([tensors])`, `mark_step()` and the program's
variables. What PyTorch leaves undefined (uninitialised memory, writes through overlapping elements)
is avoided.
"""

import itertools
import re

import torch
from program_expressions import Expressions, is_float


def byte_offsets(x):
    """The bytes of the storage that the elements take, and whether two elements share some."""
    size = x.element_size()
    steps = [[i * s * size for i in range(n)] for n, s in zip(x.shape, x.stride(), strict=True)]
    offsets = [x.storage_offset() * size + sum(p) for p in itertools.product(*steps)]
    touched = {o + b for o in offsets for b in range(size)}
    return touched, len(touched) != size * len(offsets)


def same_layout(x, y):
    return (x.size(), x.stride(), x.storage_offset(), x.dtype) == (
        y.size(),
        y.stride(),
        y.storage_offset(),
        y.dtype,
    )


REFUSED_WHEN_RUN = ("memory location", "bounds", "out of range in self", "not implemented for")


class Undefined(Exception):
    """The line would do what PyTorch leaves undefined."""


class ProgramGenerator(Expressions):
    def __init__(self, seed, environment):
        super().__init__(seed, environment)
        self.lines = []
        self.autograd_weight = self.some(0, 0, 5, 40)

    def bind(self, expression):
        return f"{self.target_name()} = {expression}"

    def check_write(self, target, operands=()):
        """Refuses writes whose result PyTorch does not define."""
        x = self.value(target)
        if x.untyped_storage().nbytes() > 4096:
            raise Undefined
        touched, overlaps = byte_offsets(x)
        if overlaps and 0 not in x.stride():
            raise Undefined
        for operand in operands:
            y = self.value(operand)
            if not isinstance(y, torch.Tensor) or same_layout(x, y):
                continue
            if (
                y.untyped_storage()._cdata == x.untyped_storage()._cdata
                and touched & byte_offsets(y)[0]
            ):
                raise Undefined
        return x

    def guarded(self, x, line):
        """Writes to leaves that require gradients are errors outside no_grad: mostly avoid them."""
        if x.requires_grad and self.chance(0.8 if x.is_leaf else 0.2):
            return f"with torch.no_grad(): {line}"
        return line

    def write(self):
        target = self.view_chain(3)
        x = self.check_write(target)
        b = self.operand(x)
        self.check_write(target, [b])
        if self.value(b).requires_grad and self.value(b).dim() == 0:
            raise Undefined  # x[...] = it: fill_ on the CPU, copy_ on devices, gradients differ
        scalar = self.scalar(x)
        dims = x.dim()
        options = [
            f"{target}.copy_({b})",
            f"{target}.fill_({scalar})",
            f"{target}.zero_()",
            f"{target}.masked_fill_({target} == {scalar}, {self.scalar(x)})",
            f"{target}.masked_fill_({self.factory(list(x.shape), 'torch.bool')}, {scalar})",
            f"{target}[...] = {scalar}",
            f"{target}[...] = {b}",
        ]
        if x.dtype != torch.bool:
            options += [
                f"{target}.add_({b})",
                f"{target}.sub_({b}, alpha=2)",
                f"{target}.mul_({b})",
                f"{target}.add_({scalar})",
                f"{target}.mul_({scalar})",
                f"{target}.neg_()" if x.dtype != torch.uint8 else f"{target}.add_(1)",
                f"{target}.addcmul_({b}, {b})",
                f"torch._foreach_add_([{target}, {target}], {scalar})",
                f"torch._foreach_mul_([{target}, {target}], [{b}, {b}])",
            ]
        else:
            options += [f"{target}.logical_not_()", f"{target}.logical_or_({b})"]
        if is_float(x):
            options += [
                f"{target}.clamp_(-4, 4)",
                f"{target}.div_(2)",
                f"{target}.lerp_({target}, 0.5)",
                f"{target}.relu_()",
                f"{target}.random_(0, 4)",
                f"{target}.uniform_()",
                f"{target}.normal_()",
                f"{target}.bernoulli_(0.5)",
                f"torch._foreach_zero_([{target}])",
            ]
        if dims:
            dim = self.rng.randrange(dims)
            size = x.shape[dim]
            index = self.index(size)
            rows = list(x.shape)
            rows[dim] = len(self.value(index))
            source = self.factory(rows, str(x.dtype))
            whole = self.factory(list(x.shape), str(x.dtype))
            first = self.index(x.shape[0], device=self.some("device", "None"))
            grid = self.index(size, [min(n, 2) for n in x.shape])
            options += [
                f"{target}.index_fill_({dim}, {index}, {scalar})",
                f"{target}.index_copy_({dim}, {index}, {source})",
                f"{target}.index_add_({dim}, {index}, {source})",
                f"{target}.scatter_({dim}, {grid}, {scalar})",
                f"{target}.scatter_add_({dim}, {grid}, {whole})",
                f"{target}.index_put_(({first},), {self.factory([], str(x.dtype))},"
                f" accumulate={self.chance(0.5)})",
                f"{target}[{self.slices(x)}] = {scalar}",
                f"{target}[{target} == {scalar}] = {self.scalar(x)}",
            ]
            if x.dtype != torch.bool:
                options.append(f"{target}.cumsum_({dim})")
                options.append(f"{target}[{self.slices(x)}] += {scalar}")
            if dims >= 2:
                options.append(f"{target}.tril_()")
        return self.guarded(x, self.rng.choice(options))

    def out(self):
        a = self.view_chain(1, lambda x: x.dtype == torch.float32)
        x = self.value(a)
        b = self.operand(x, same_dtype=True)
        dims = x.dim()
        calls = [
            (f"torch.{self.some('add', 'mul', 'sub')}({a}, {b}, out={{}})", x.shape),
            (f"torch.{self.some('neg', 'abs', 'floor', 'exp')}({a}, out={{}})", x.shape),
            (f"torch.clamp({a}, -1, 1, out={{}})", x.shape),
        ]
        if dims:
            dim = self.rng.randrange(dims)
            less = list(x.shape[:dim]) + list(x.shape[dim + 1 :])
            twice = list(x.shape)
            twice[dim] *= 2
            zeros = "torch.zeros(2, dtype=torch.int64, device=device)"
            calls += [
                (f"torch.sum({a}, {dim}, out={{}})", less),
                (f"torch.cumsum({a}, {dim}, out={{}})", x.shape),
                (f"torch.cat([{a}, {b}.expand({list(x.shape)})], {dim}, out={{}})", twice),
                (
                    f"torch.index_select({a}, {dim}, {zeros}, out={{}})",
                    None,
                ),
            ]
        if dims == 2:
            calls.append((f"torch.mm({a}, {a}.t(), out={{}})", [x.shape[0]] * 2))
        call, shape = self.rng.choice(calls)
        fitting = self.tensors(
            lambda y: (
                shape is not None
                and y.shape == torch.Size(shape)
                and y.dtype in (torch.float32, torch.float64)
            )
        )
        if fitting and self.chance(0.7):
            out = self.rng.choice(fitting)
        elif shape is not None and self.chance(0.6):
            out = self.factory(list(shape), "torch.float32")
        elif self.chance(0.8):
            out = "torch.empty(0, device=device)"
        else:
            out = self.pick(lambda y: y.dtype == torch.float32 and not y.requires_grad)
        if out.startswith("t") and out[1:].isdigit():
            y = self.check_write(out, [a, b])
            if 0 in y.stride() and 0 not in y.shape:
                raise Undefined
            storages = {self.value(e).untyped_storage()._cdata for e in (a, b)}
            if y.untyped_storage()._cdata in storages and (
                shape is None or list(shape) != list(y.shape)
            ):
                raise Undefined  # out= would resize its own input
            line = f"{out} = {call.format(out)}" if self.chance(0.5) else call.format(out)
            return self.guarded(y, line)
        return self.bind(call.format(out))

    def metadata(self):
        """Statements that change a tensor rather than its values."""
        if self.autograd_weight:
            # Autograd replays views on this device type, and does not see metadata that changed.
            raise LookupError
        a = self.pick(lambda x: not x.requires_grad and x.is_leaf)
        x = self.value(a)
        dims = x.dim()
        options = [f"{a}.unsqueeze_({self.rng.randint(0, dims)})", f"{a}.squeeze_()"]
        if dims >= 2:
            options += [f"{a}.transpose_(0, 1)", f"{a}.swapdims_(-1, 0)"]
        elements = x.untyped_storage().nbytes() // x.element_size()
        if elements < 256 and not x.is_conj() and not x.is_neg():
            options += [
                f"{a}.resize_({self.shape(3)}).fill_({self.scalar(x)})",
                f"{a}.data = {self.view_chain(1)}.detach().to({x.dtype})",
                f"{a}.data = {self.pick(lambda y: y.dtype == x.dtype)}.data",
                f"{a}.set_({self.pick(lambda y: y.dtype == x.dtype and not y.requires_grad)})",
                f"{a}.as_strided_({self.strided_window(x)})",
                # Counted when it runs: more than there is would be memory without content.
                f"{a}.set_({a}.untyped_storage(), 0,"
                f" [{a}.untyped_storage().nbytes() // {a}.element_size()], [1])",
            ]
        return self.rng.choice(options)

    def foreach(self):
        a = self.view_chain(1, lambda x: x.dtype == torch.float32 and not x.requires_grad)
        x = self.check_write(a)
        b = self.operand(x, same_dtype=True)
        self.check_write(a, [b])
        c = self.pick(lambda y: y.dtype == torch.float32 and not y.requires_grad)
        self.check_write(c)
        options = [
            f"torch._foreach_add_([{a}, {c}, {a}], 1)",
            f"torch._foreach_mul_([{c}, {a}], [2, 3])",
            f"torch._foreach_zero_([{a}, {c}])",
            f"torch._foreach_copy_([{a}], [{b}])",
            f"torch._foreach_addcmul_([{a}], [{b}], [{b}], value=2)",
            f"torch._foreach_sub_([{a}], [{b}], alpha=2)",
            f"{self.target_name()} = torch._foreach_add([{a}, {c}], 1)[{self.some('0', '1')}]",
            f"torch._foreach_lerp_([{a}], [{b}], 0.5)",
            f"torch._foreach_clamp_min_([{a}, {c}], 0)",
        ]
        return self.rng.choice(options)

    def read(self):
        a = self.view_chain(2)
        x = self.value(a)
        if x.requires_grad:  # to the CPU is an operation for autograd: a view may not allow it
            a += ".detach()"
        b = self.pick()
        options = [
            f"read({a})",
            f"read({a}.cpu().clone())",
            f"read({a}.tolist())",
            f"read({a}.sum().item())",
            f"read(torch.equal({a}, {b}))",
            f"read(bool(({a} == {self.scalar(x)}).any()))",
            f"read({a}.nonzero().tolist())",
            f"read({a}.flatten().unique())" if not x.is_complex() else f"read({a})",
            f"read({a}.shape)",
            f"read({a}.is_contiguous())",
            f"read({a}.to('cpu', torch.float64).clone())" if not x.is_complex() else f"read({a})",
        ]
        return self.rng.choice(options)

    def control(self):
        options = ["mark_step()", f"sync([{self.pick()}])", f"sync([{self.pick()}, {self.pick()}])"]
        if len(self.tensors()) > 4:
            options += [f"del {self.pick()}"] * 4
        options += [
            f"{self.target_name()} = {self.pick()}",
            f"torch.manual_seed({self.rng.randint(0, 9)})",
        ]
        return self.rng.choice(options)

    def autograd(self):
        leaves = self.tensors(lambda x: x.requires_grad and x.is_leaf and is_float(x))
        if not leaves or self.chance(0.15):
            shape = self.shape(3)
            # A clone: a leaf that is a view loses its gradient in eager when its base is written.
            return self.bind(f"{self.factory(shape, 'torch.float32')}.clone().requires_grad_()")
        w = self.rng.choice(leaves)
        x = self.value(w)
        options = [
            f"{self.target_name()} = {w} * {self.some('2', w)}",
            f"{self.target_name()} = {self.view(w)}",
            f"{self.target_name()} = {w}.clone()",
            f"with torch.no_grad(): {w}.{self.some('mul_(2)', 'add_(1)', 'zero_()')}",
            f"{w}.detach().{self.some('mul_(2)', 'fill_(1)')}",
            f"{w}.grad = None",
            f"{w}.data.add_(1)",
        ]
        if x.grad is not None:
            options += [
                f"read({w}.grad.tolist())",
                f"with torch.no_grad(): {w}.sub_({w}.grad, alpha=0.5)",
                f"{w}.grad.zero_()",
                f"{self.target_name()} = {w}.grad.clone(memory_format=torch.contiguous_format)",
            ]
        results = self.tensors(lambda y: y.requires_grad and not y.is_leaf and is_float(y))
        if results:
            y = self.rng.choice(results)
            fresh = self.target_name()
            checkpoint = "torch.utils.checkpoint.checkpoint"
            # As numbers: for views of a base that was written, autograd on this device type
            # replays the views, and their gradients may get other strides than eager's.
            gradient = (
                f"torch.autograd.grad({y}.sum(), [{w}], allow_unused=True, retain_graph=True)"
            )
            options += [
                f"{y}.sum().backward(retain_graph={self.chance(0.8)})",
                f"{y}.sum().backward(retain_graph=True)",
                f"({y} * {w}.sum()).sum().backward(retain_graph=True)",
                f"({y} * {y}).sum().backward()",
                f"read([g.tolist() for g in {gradient} if g is not None])",
                f"{fresh} = {y} * 1; {fresh}.register_hook(lambda g: g * 2)",
                f"{y}.{self.some('mul_(2)', 'add_(1)', 'relu_()')}",
                f"{checkpoint}(lambda q: (q * q).exp(), {y}, use_reentrant=False).sum().backward()",
            ]
        return self.rng.choice(options)

    def line(self):
        kinds = {
            self.write: 30,
            self.functional: 16,
            self.read: 7,
            self.control: 10,
            self.out: 7,
            self.metadata: 4,
            self.foreach: 4,
            self.autograd: self.autograd_weight,
        }
        if len(self.tensors()) < 2 or self.chance(0.08):
            return self.bind(self.factory())
        if self.chance(0.2):
            return self.bind(self.view_chain(3))
        return self.rng.choices(list(kinds), list(kinds.values()))[0]()

    def grow(self, length):
        """Adds lines that eager runs, and a few that it refuses, to compare errors."""
        misses = 0
        while len(self.lines) < length and misses < 50 * length:
            misses += 1
            try:
                line = self.line()
            except (LookupError, Undefined):
                continue
            except Exception:  # an expression under construction that eager refuses
                continue
            try:
                exec(line, self.env)
            except Exception as error:
                # What a kernel refuses comes when it runs: never, if what it writes to is dead.
                late = any(words in str(error) for words in REFUSED_WHEN_RUN)
                if late and not re.match(r"t\d+\.\w+_\(", line):
                    continue
                if self.chance(0.9) or "out=" in line or "foreach" in line or "resize_" in line:
                    continue
            self.lines.append(line)
        return self.lines
