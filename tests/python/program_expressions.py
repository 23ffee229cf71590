"""Random expressions that make tensors: factories, views, operands that fit, operators.

Each is tried on eager while it is put together, so that shapes fit. Values are small integers where
they can be.
"""

import random

import torch

FLOATS = ["torch.float32", "torch.float32", "torch.float32", "torch.float64", "torch.bfloat16"]
INTEGERS = ["torch.int64", "torch.int32", "torch.uint8", "torch.bool"]
DTYPES = FLOATS * 3 + INTEGERS + ["torch.complex64"]


def is_float(x):
    return x.dtype.is_floating_point


class Expressions:
    def __init__(self, seed, environment):
        self.rng = random.Random(seed)
        self.env = environment
        self.count = 0

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
        values = [self.rng.randint(0, 5) for _ in range(n)]
        options = [
            f"torch.zeros({shape}, dtype={dtype}, device=device)",
            f"torch.ones({shape}, dtype={dtype}, device=device)",
            f"torch.full({shape}, {self.rng.randint(0, 1)}, dtype={dtype}, device=device)",
            f"torch.arange({n}, device=device).remainder(7).to({dtype}).reshape({shape})",
            f"torch.tensor({values}, dtype={dtype}, device=device).view({shape})",
            f"torch.tensor({values}, dtype={dtype}).reshape({shape}).to(device, copy=True)",
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
                f"torch.arange({n}).reshape({shape}).to({dtype}).contiguous({channels_last})"
                ".to(device, copy=True)"
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
        ]
        # The gradient of as_strided of a view differs with what was written to the base, in eager.
        if not (x._is_view() and (x.requires_grad or x._base.requires_grad)):
            options.append(lambda: f"{expression}.as_strided({self.strided_window(x)})")
        if dims:
            dim = self.rng.randrange(-dims, dims)
            size = x.shape[dim]
            options += [
                lambda: f"{expression}.transpose({dim}, {self.rng.randrange(dims)})",
                lambda: f"{expression}.permute({self.rng.sample(range(dims), dims)})",
                lambda: f"{expression}[{self.slices(x)}]",
                lambda: f"{expression}[{self.slices(x)}]",
                lambda: (
                    f"{expression}.expand({[self.some(1, 2, 3) if n == 1 else n for n in x.shape]})"
                ),
                lambda: f"{expression}.expand({[2, *list(x.shape)]})",
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
                    lambda: f"{expression}.unfold({dim}, {self.rng.randint(1, size)}, 1)",
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
            return [0, *self.shape(1)]
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
                a == 1 or a == b for a, b in zip(reversed(y.shape), reversed(x.shape), strict=False)
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
                f"{a}[{a} != 0].clone()",  # its own storage is larger than it
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
