"""Random tensor programs, as lines of Python. Each line is tried on eager while the program grows, so that shapes fit.

A line uses `torch`, `device`, `read(value)`, `sync([tensors])`, `mark_step()` and the program's variables. Values are small
integers where they can be; what PyTorch leaves undefined (uninitialised memory, writes through overlapping elements) is avoided.
"""

import itertools
import random

import torch

FLOATS = ["torch.float32", "torch.float32", "torch.float32", "torch.float64", "torch.bfloat16"]
INTEGERS = ["torch.int64", "torch.int32", "torch.uint8", "torch.bool"]
DTYPES = FLOATS * 3 + INTEGERS + ["torch.complex64"]


def is_float(x):
    return x.dtype.is_floating_point


def byte_offsets(x):
    """The first byte of every element, relative to the storage, and whether two elements share memory."""
    size = x.element_size()
    steps = [[i * s * size for i in range(n)] for n, s in zip(x.shape, x.stride())]
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


class Undefined(Exception):
    """The line would do what PyTorch leaves undefined."""


class ProgramGenerator:
    def __init__(self, seed, environment):
        self.rng = random.Random(seed)
        self.env = environment
        self.lines = []
        self.count = 0
        self.autograd_weight = 40 if self.chance(0.25) else 5

    # Choices.

    def some(self, *options):
        return self.rng.choice(options)

    def chance(self, p):
        return self.rng.random() < p

    def tensors(self, condition=lambda x: True):
        return [
            n
            for n, x in self.env.items()
            if isinstance(x, torch.Tensor) and n[0] == "t" and n[1:].isdigit() and condition(x)
        ]

    def pick(self, condition=lambda x: True):
        names = self.tensors(condition)
        if not names:
            raise LookupError
        recent = names[-4:]
        return self.rng.choice(recent if self.chance(0.5) else names)

    def value(self, expression):
        return eval(expression, self.env)

    def target_name(self):
        names = self.tensors()
        if len(names) >= 9 or (names and self.chance(0.15)):
            return self.rng.choice(names)
        self.count += 1
        return f"t{self.count}"

    def shape(self, limit=4):
        sizes = [0, 1, 1, 1, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 4, 4, 4, 5]
        return [self.rng.choice(sizes) for _ in range(self.rng.randint(0, limit))]

    def scalar(self, x):
        if x.dtype == torch.bool:
            return self.some("True", "False")
        if is_float(x):
            return self.some("-2", "0.5", "2", "3", "-1.0", "0")
        return self.some("1", "2", "3", "0")

    # Factories.

    def factory(self, shape=None, dtype=None):
        shape = self.shape() if shape is None else shape
        dtype = dtype or self.rng.choice(DTYPES)
        n = 1
        for k in shape:
            n *= k
        options = [
            f"torch.zeros({shape}, dtype={dtype}, device=device)",
            f"torch.ones({shape}, dtype={dtype}, device=device)",
            f"torch.full({shape}, {self.rng.randint(0, 1)}, dtype={dtype}, device=device)",
            f"torch.arange({n}, device=device).remainder(7).to({dtype}).reshape({shape})",
            f"torch.tensor({[self.rng.randint(0, 5) for _ in range(n)]}, dtype={dtype}, device=device).view({shape})",
            f"torch.tensor({[self.rng.randint(0, 5) for _ in range(n)]}, dtype={dtype}).reshape({shape}).to(device)",
            f"torch.randint(0, 4, {shape}, device=device).to({dtype})",
            f"torch.empty({shape}, dtype={dtype}, device=device).fill_({self.rng.randint(0, 1)})",
        ]
        if dtype == "torch.float32":
            options += [
                f"torch.randint(-3, 4, {shape}, dtype=torch.float32, device=device)",
                f"torch.rand({shape}, device=device)",
                f"torch.randn({shape}, device=device)",
            ]
        if len(shape) == 4:
            channels_last = "memory_format=torch.channels_last"
            options.append(
                f"torch.ones({shape}, dtype={dtype}, device=device).contiguous({channels_last})"
            )
            options.append(
                f"torch.arange({n}).reshape({shape}).to({dtype}).contiguous({channels_last}).to(device)"
            )
        return self.rng.choice(options)

    def like(self, name):
        call = self.some("zeros_like", "ones_like", "zeros_like")
        more = self.some("", ", memory_format=torch.contiguous_format", ", dtype=torch.float32")
        return self.some(
            f"torch.{call}({name}{more})",
            f"{name}.new_ones({self.shape()})",
            f"torch.full_like({name}, 1)",
        )

    # Views. Each takes an expression and gives one.

    def view(self, expression):
        x = self.value(expression)
        dims = x.dim()
        options = [
            lambda: f"{expression}.unsqueeze({self.rng.randint(-dims - 1, dims)})",
            lambda: f"{expression}.squeeze()",
            lambda: (
                f"{expression}.detach()"
                if not x.requires_grad or self.chance(0.2)
                else f"{expression}[...]"
            ),
            lambda: f"{expression}.view({expression}.shape)",
            lambda: f"{expression}.reshape({self.factored(x.numel())})",
            lambda: f"{expression}.view({self.factored(x.numel())})",
            lambda: f"{expression}.flatten()",
            lambda: f"{expression}.as_strided({self.strided_window(x)})",
        ]
        if dims:
            dim = self.rng.randrange(-dims, dims)
            size = x.shape[dim]
            options += [
                lambda: f"{expression}.transpose({dim}, {self.rng.randrange(dims)})",
                lambda: f"{expression}.permute({self.rng.sample(range(dims), dims)})",
                lambda: f"{expression}[{self.slices(x)}]",
                lambda: f"{expression}[{self.slices(x)}]",
                lambda: (
                    f"{expression}.expand({[n if n != 1 else self.rng.choice([1, 2, 3]) for n in x.shape]})"
                ),
                lambda: f"{expression}.expand({[2] + list(x.shape)})",
                lambda: f"{expression}.squeeze({dim})",
                lambda: f"{expression}.movedim({dim}, 0)",
                lambda: f"{expression}.unbind({dim})[{self.rng.randrange(max(size, 1))}]",
                lambda: f"{expression}.mT" if dims > 1 else f"{expression}.unsqueeze(0)",
            ]
            if size:
                start = self.rng.randrange(size)
                length = self.rng.randint(0, size - start)
                options += [
                    lambda: f"{expression}.select({dim}, {start})",
                    lambda: f"{expression}.narrow({dim}, {start}, {length})",
                    lambda: (
                        f"{expression}.unfold({dim}, {self.rng.randint(1, size)}, {self.rng.randint(1, 2)})"
                    ),
                    lambda: f"{expression}.chunk({self.rng.randint(1, 3)}, {dim})[0]",
                    lambda: f"{expression}.split({self.rng.randint(1, size)}, {dim})[-1]",
                ]
        if dims >= 2:
            options.append(
                lambda: f"{expression}.diagonal({self.rng.randint(-1, 1)}, {dims - 2}, {dims - 1})"
            )
            options.append(lambda: f"{expression}.flatten(0, 1)")
        same_size = {
            4: ["int32", "float32"],
            8: ["int64", "float64", "complex64"],
            2: ["bfloat16", "int16"],
        }
        if x.element_size() in same_size and x.dtype != torch.complex64 and self.chance(0.08):
            dtype = self.rng.choice(same_size[x.element_size()])
            if dtype != "complex64":
                options = [lambda: f"{expression}.view(torch.{dtype})"]
        elif x.dtype == torch.float32 and dims and self.chance(0.03):
            options = [lambda: f"{expression}.view(torch.{self.some('int16', 'float64', 'uint8')})"]
        elif x.is_complex():
            options += [
                lambda: f"{expression}.conj()",
                lambda: f"{expression}.real",
                lambda: f"{expression}.imag",
                lambda: f"{expression}.conj().imag",
                lambda: f"torch.view_as_real({expression})",
            ]
        elif x.dtype == torch.float32 and dims and x.shape[-1] == 2:
            options.append(lambda: f"torch.view_as_complex({expression})")
        return self.rng.choice(options)()

    def factored(self, n):
        if n == 0:
            return [0] + self.shape(1)
        out = []
        for p in (2, 3, 5):
            while n % p == 0 and self.chance(0.7):
                out.append(p)
                n //= p
        out.insert(self.rng.randint(0, len(out)), -1 if self.chance(0.3) else n)
        return out

    def slices(self, x):
        parts = []
        for n in x.shape:
            a, b = sorted((self.rng.randint(0, n), self.rng.randint(0, n)))
            choices = [
                ":",
                f"{a}:{b}",
                f"{a}:",
                f":{b}",
                f"::{self.rng.randint(1, 3)}",
                f"{a}:{n}:2",
            ]
            if n:
                choices += [str(self.rng.randrange(n)), str(-self.rng.randint(1, n))]
            if self.chance(0.1):
                choices = ["None, :"]
            parts.append(self.rng.choice(choices))
        if len(parts) > 1 and self.chance(0.2):
            parts = ["...", parts[-1]]
        return ", ".join(parts)

    def strided_window(self, x):
        """A size, strides and offset that stay inside the storage of x."""
        room = x.untyped_storage().nbytes() // x.element_size()
        size, stride, last = [], [], 0
        offset = self.rng.randint(0, max(room - 1, 0)) if self.chance(0.5) else 0
        if room == 0:
            return "[0], [1], 0"
        for _ in range(self.rng.randint(0, 3)):
            step = self.rng.choice([1, 1, 2, 3, 4])
            most = (room - 1 - offset - last) // step + 1
            n = self.rng.randint(1, min(most, 4))
            last += (n - 1) * step
            size.append(n)
            stride.append(step)
        return f"{size}, {stride}, {offset}"

    def view_chain(self, longest=3, condition=lambda x: True):
        expression = self.pick(condition)
        for _ in range(self.rng.randint(0, longest)):
            expression = self.view(expression)
        return expression

    # Operands and values.

    def operand(self, x, same_dtype=False):
        """An expression that broadcasts to the shape of x."""

        def fits(y):
            if same_dtype and y.dtype != x.dtype:
                return False
            if not torch.can_cast(y.dtype, x.dtype):
                return False
            return y.dim() <= x.dim() and all(
                a == 1 or a == b for a, b in zip(reversed(y.shape), reversed(x.shape))
            )

        names = self.tensors(fits)
        if names and self.chance(0.6):
            return self.rng.choice(names)
        shape = list(x.shape)
        if not same_dtype:
            shape = shape[self.rng.randint(0, len(shape)) if self.chance(0.3) else 0 :]
            shape = [1 if self.chance(0.15) else n for n in shape]
        return self.factory(shape, str(x.dtype) if same_dtype or not is_float(x) else None)

    def index(self, n, shape=None, device="device"):
        shape = [self.rng.randint(0, 3) if n else 0] if shape is None else shape
        total = 1
        for k in shape:
            total *= k
        low = -n if self.chance(0.2) and len(shape) == 1 else 0
        values = [self.rng.randrange(low, n) if n else 0 for _ in range(total)]
        flat = f"torch.tensor({values}, dtype=torch.int64, device={device})"
        return flat if len(shape) == 1 else f"{flat}.view({shape})"

    def functional(self):
        a = self.view_chain(2)
        x = self.value(a)
        b = self.operand(x)
        dims = x.dim()
        options = [
            f"{a} {self.some('+', '-', '*')} {b}" if x.dtype != torch.bool else f"{a} ^ {a}",
            f"{a} {self.some('>', '<=', '==', '!=')} {b}" if not x.is_complex() else f"{a} == {b}",
            f"{a} + {self.scalar(x)}",
            f"{a}.clone()",
            f"{a}.contiguous()",
            f"{a}.to({self.rng.choice(FLOATS)})",
            f"{a}.sum()",
            f"torch.where({a} == {self.scalar(x)}, {a}, {b})",
            f"{a}.relu()" if not x.is_complex() and x.dtype != torch.bool else f"{a}.clone()",
            f"{a}.abs()" if x.dtype != torch.bool else f"~{a}",
            f"{a}.reciprocal()",
            f"{a}.nonzero()",
            f"{a}.repeat({[2] * max(dims, 1)})",
            self.like(a),
        ]
        if is_float(x):
            options += [
                f"{a} / {self.some('2', '4', '0.5')}",
                f"{a} // 2",
                f"{a}.clamp(-3, 3)",
                f"{a}.exp()",
                f"{a}.sigmoid()",
                f"torch.nn.functional.gelu({a})",
                f"torch.nn.functional.dropout({a}, 0.5)",
                f"{a}.to({self.rng.choice(INTEGERS)})",
                f"{a}.lerp({a}, 0.5)",
                f"torch.addcmul({a}, {a}, {a}, value=2)",
                f"{a}.bernoulli(0.5)",
            ]
        if dims:
            dim = self.rng.randrange(-dims, dims)
            size = x.shape[dim]
            index = self.index(size)
            options += [
                f"{a}.sum({dim}, keepdim={self.chance(0.5)})",
                f"{a}.flip({dim})",
                f"{a}.roll(1, {dim})",
                f"torch.cat([{a}, {a}], {dim})",
                f"torch.stack([{a}, {a}], {dim})",
                f"{a}.cumsum({dim})",
                f"{a}.index_select({dim}, {index})",
                f"{a}.movedim({dim}, 0)[{self.index(size, device=self.some('device', 'None'))}]",
                f"{a}.masked_select({a} != 0)",
                f"{a}[{a} != 0]",
            ]
            if not x.is_complex() and size:
                options += [
                    f"{a}.amax({dim})",
                    f"{a}.argmax({dim})",
                    f"{a}.max({dim})[{self.some('0', '1')}]",
                    f"{a}.sort({dim}, stable=True)[{self.some('0', '1')}]",
                ]
            if is_float(x) and size:
                options += [
                    f"{a}.softmax({dim})",
                    f"{a}.mean({dim})",
                    f"torch.nn.functional.layer_norm({a}, [{x.shape[-1]}])"
                    if x.shape[-1]
                    else f"{a}.sum()",
                ]
        if dims == 2:
            options += [
                f"{a} @ {a}.mT",
                f"torch.mm({a}, {a}.t())",
                f"{a}.tril()",
                f"torch.diag({a})",
            ]
        if dims == 4 and x.dtype == torch.float32 and x.numel():
            options.append(f"torch.nn.functional.conv2d({a}, {a}[:1, :, :1, :1])")
            options.append(f"torch.nn.functional.avg_pool2d({a}, 1)")
        expression = self.rng.choice(options)
        return self.bind(expression) if self.chance(0.95) else expression

    # Lines.

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
        """In-place writes on leaves that require gradients are errors outside no_grad: mostly avoid them."""
        if x.requires_grad and self.chance(0.8 if x.is_leaf else 0.2):
            return f"with torch.no_grad(): {line}"
        return line

    def write(self):
        target = self.view_chain(3)
        x = self.check_write(target)
        b = self.operand(x)
        self.check_write(target, [b])
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
            grid = self.index(size, [min(n, 2) for n in x.shape])
            options += [
                f"{target}.index_fill_({dim}, {index}, {scalar})",
                f"{target}.index_copy_({dim}, {index}, {source})",
                f"{target}.index_add_({dim}, {index}, {source})",
                f"{target}.scatter_({dim}, {grid}, {scalar})",
                f"{target}.scatter_add_({dim}, {grid}, {self.factory(list(x.shape), str(x.dtype))})",
                f"{target}.index_put_(({self.index(x.shape[0], device=self.some('device', 'None'))},), {self.factory([], str(x.dtype))},"
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
            calls += [
                (f"torch.sum({a}, {dim}, out={{}})", less),
                (f"torch.cumsum({a}, {dim}, out={{}})", x.shape),
                (f"torch.cat([{a}, {b}.expand({list(x.shape)})], {dim}, out={{}})", twice),
                (
                    f"torch.index_select({a}, {dim}, torch.zeros(2, dtype=torch.int64, device=device), out={{}})",
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
        a = self.pick(lambda x: not x.requires_grad and x.is_leaf)
        x = self.value(a)
        dims = x.dim()
        options = [f"{a}.unsqueeze_({self.rng.randint(0, dims)})", f"{a}.squeeze_()"]
        if dims >= 2:
            options += [f"{a}.transpose_(0, 1)", f"{a}.swapdims_(-1, 0)"]
        if x.untyped_storage().nbytes() < 1024 and not x.is_conj() and not x.is_neg():
            options += [
                f"{a}.resize_({self.shape(3)}).fill_({self.scalar(x)})",
                f"{a}.data = {self.view_chain(1)}.detach().to({x.dtype})",
                f"{a}.data = {self.pick(lambda y: y.dtype == x.dtype)}.data",
                f"{a}.set_({self.pick(lambda y: y.dtype == x.dtype and not y.requires_grad)})",
                f"{a}.as_strided_({self.strided_window(x)})",
                f"{a}.set_({a}.untyped_storage(), 0, {[x.untyped_storage().nbytes() // x.element_size()]}, [1])",
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
            # A clone: eager loses the gradient of a leaf that is a view when its base is written to.
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
                f"read({w}.grad)",
                f"with torch.no_grad(): {w}.sub_({w}.grad, alpha=0.5)",
                f"{w}.grad.zero_()",
                f"{self.target_name()} = {w}.grad.clone()",
            ]
        results = self.tensors(lambda y: y.requires_grad and not y.is_leaf and is_float(y))
        if results:
            y = self.rng.choice(results)
            fresh = self.target_name()
            # As numbers: autograd replays views on devices other than the CPU and CUDA, and gradients get other strides.
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
                f"torch.utils.checkpoint.checkpoint(lambda q: (q * q).exp(), {y}, use_reentrant=False).sum().backward()",
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
        """Adds lines that eager runs; a few of those that eager refuses are kept, to compare errors."""
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
            except Exception:
                if self.chance(0.9) or "out=" in line or "foreach" in line or "resize_" in line:
                    continue
            self.lines.append(line)
        return self.lines
