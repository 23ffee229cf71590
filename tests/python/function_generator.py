"""Random Python functions for torch_lazy.compile: a package of three modules with a function, and
what happens between its calls.

A program has fragments. Each is a value that the function finds somewhere (function_sources.py),
through any number of functions, methods and modules, and computes with. Most programs have a model
as well, and half of those train it (function_changes.py). Between two calls one thing changes.
"""

import dataclasses
import random
import re

import function_changes
import function_sources

MODULES = ("inner", "helper", "main", "driver")
"""Each may name those before it."""

PREAMBLE = """\
import array, collections, contextlib, contextvars, copy, ctypes, dataclasses, decimal, enum
import functools, gc, io, itertools, json, logging, math, operator, os, pathlib, pickle, queue
import random, re, sys, threading, time, types, warnings, weakref
import numpy as np
import torch
import torch.nn.functional as F
import torch.nn.utils.parametrize
import torch.utils.checkpoint
from torch import nn
"""
IMPORTS = {
    "inner": "",
    "helper": "from .deep import inner\n",
    "main": "from .deep import inner\nfrom . import helper\n",
}

NET = """
class Act(nn.Module):
    def forward(self, x):
        return F.softsign(x) + torch.erf(x)

class Net(nn.Module):
    gain = 1.5

    def __init__(self):
        super().__init__()
        self.first, self.third = nn.Linear(6, 8), nn.Linear(6, 8)
        self.act, self.drop, self.norm = Act(), nn.Dropout(0.3), nn.BatchNorm1d(8)
        self.second = nn.Linear(8, 6)
        self.tail = nn.Sequential(nn.Identity(), nn.Tanh())
        self.register_buffer("table", torch.ones(6))
        self.scale, self.options, self.order = 1.5, {"power": 1}, [torch.tanh, torch.sin]

    @property
    def shift(self):
        return 0.25

    def mix(self, x):
        return x.tanh()

    def forward(self, x):
$s
        h = self.act(self.first(x)) + self.third(x)
        h = self.norm(self.drop(h))
        for f in self.order:
            h = f(h * 2)
        h = self.mix(h) ** self.options["power"] * getattr(self, "gain_of_all", 1.0)
        h = self.second(h) * self.scale * self.gain + self.shift
        if hasattr(self, "more"):
            h = h + self.more
        return self.tail(h) * self.table * getattr(self.first.weight, "keep", 1.0)
"""

CUSTOM = """
LIMIT = 0.1

class Custom(torch.optim.Optimizer):
    gain = 1.0

    def __init__(self, params):
        super().__init__(params, {"lr": 0.05, "weight_decay": 0.1})
        self.t, self.factor = 0, 1.0

    def rate(self, group):
        return group["lr"] * 0.7

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
$s
            for p in group["params"]:
                if p.grad is not None:
                    p.add_(p.grad, alpha=-rate)
"""

STEPS = {
    "function": """
def step(x, y$a):
$s
    return $r
""",
    "inference": """
def step(x, y$a):
    with torch.no_grad():
$$s
        x = model(x)
$$t
    return $r
""",
    "gradients": """
def step(x, y$a):
$s
    x = model(x)
$t
    loss = F.mse_loss(x.tanh(), y)
    loss.backward()
    return loss.detach()
""",
    "training": """
CLIP = 5.0
loss_of = F.mse_loss
def step(x, y$a):
    optimizer.zero_grad($z)
$s
    x = model(x)
    x = x + spare * 0.1
$t
    loss = loss_of(x.tanh(), y)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    optimizer.step()
    return loss.detach()
""",
}
BESIDE = """
def beside(x):
    with torch.no_grad():
        return model(x)
"""

RESULTS = (
    "x",
    "x",
    "x.sum()",
    "(x, x * 2)",
    "{'a': x, 'b': [x.tanh()]}",
    "(x, 3, None, 'k')",
    "collections.namedtuple('Pair', 'a b')(x, x.shape[0])",
    "types.SimpleNamespace(a=x)",
    "collections.OrderedDict(a=x)",
    "(x, x.detach().cpu().numpy())",
    "x.sum().item()",
)
TARGETS = {
    "function": "target = step\n",
    "lambda": "target = lambda *a, **k: step(*a, **k)\n",
    "method": (
        "class Owner:\n    def run(self, *a, **k):\n        return step(*a, **k)\n"
        "target = Owner().run\n"
    ),
    "callable": (
        "class Owner:\n    def __call__(self, *a, **k):\n        return step(*a, **k)\n"
        "target = Owner()\n"
    ),
    "partial": "target = functools.partial(step)\n",
    "compiled": (  # a compiled function in a compiled function
        "import torch_lazy\npart = torch_lazy.compile(step) if DEVICE.type == 'lazy' else step\n"
        "target = lambda *a, **k: part(*a, **k)\n"
    ),
    "module": (
        "class Whole(nn.Module):\n    def forward(self, *a, **k):\n        return step(*a, **k)\n"
        "target = Whole()\n"
    ),
}


@dataclasses.dataclass(frozen=True)
class Layer:
    kind: str
    setup: str
    text: str
    module: str


@dataclasses.dataclass(frozen=True)
class Fragment:
    """A value, the way to it, and what is computed with it."""

    source: function_sources.Source
    home: str
    values: tuple[object, object]
    use: str
    value_layers: tuple[Layer, ...] = ()
    statement_layers: tuple[Layer, ...] = ()
    in_net: bool = False
    after: bool = False
    """Behind the model instead of before it."""


@dataclasses.dataclass(frozen=True)
class Program:
    base: str
    fragments: tuple[Fragment, ...]
    change: function_changes.Change | None
    """Of model or optimizer; None: the first fragment's value changes, if it does not by itself."""
    optimizer: str
    groups: int
    zero_grad: str
    net: str
    """The module that has the model's class."""
    result: str
    target: str
    calls: int
    change_at: int
    again_after: int
    """Calls until the change is undone, or done again; 0: never."""
    reads: bool
    """Results are read after each call; else at the end."""
    sizes: tuple[int, ...]
    """Of batches, in turn."""
    keywords: bool
    """y is passed by its name."""
    beside: bool
    """Another compiled function uses the same model."""
    looks: tuple[int, ...]
    """Calls after which all state is compared."""

    @property
    def kind(self):
        return self.change.kind if self.change else self.fragments[0].source.kind


# ---- Making --------------------------------------------------------------------------------------


def generate(seed):
    choose = random.Random(seed)
    change = None
    if choose.random() < 0.4:
        change = choose.choice(function_changes.CHANGES)
    base = _base(choose, change)
    net = choose.choice(("helper", "main"))
    fragments = []
    if change is None:
        fragments.append(_fragment(choose, choose.choice(function_sources.SOURCES), base, net))
    quiet = [source for source in function_sources.SOURCES if source.change]
    for _ in range(choose.choice((0, 1, 1, 2))):
        fragments.append(_fragment(choose, choose.choice(quiet), base, net))
    calls, change_at = _calls(choose)
    optimizer = change.optimizer if change else ""
    optimizer = optimizer or choose.choice([*function_changes.OPTIMIZERS, "custom lr"])
    if calls > 300 and base == "training":
        # Others round differently when they count on the device, which a thousand steps show.
        optimizer = optimizer if optimizer.startswith("custom") else "momentum"
    return Program(
        base=base,
        fragments=tuple(fragments),
        change=change,
        optimizer=optimizer,
        groups=choose.choice((1, 1, 2)),
        zero_grad=choose.choice(("", "", "set_to_none=False")),
        net=net,
        result=choose.choice(RESULTS),
        target=choose.choice([*TARGETS, "function", "function"]),
        calls=calls,
        change_at=change_at,
        again_after=choose.choice((0, 0, 1, 3, 9)),
        reads=choose.random() < 0.8,
        sizes=choose.choice(((4,), (4,), (4,), (4, 3), (4, 4, 5))),
        keywords=choose.random() < 0.2,
        beside=base != "function" and choose.random() < 0.15,
        looks=tuple(sorted(choose.sample(range(calls), 2))) if choose.random() < 0.4 else (),
    )


def _base(choose, change):
    if change is None:
        return choose.choice(("function", "function", "inference", "gradients", "training"))
    if change.needs == "grads":
        return "gradients"
    if change.needs in ("training", "schedule"):
        return "training"
    return choose.choice(("inference", "training", "training"))


def _calls(choose):
    """How many calls, and before which something changes: checks come at 8, 16, 32, ..."""
    if choose.random() < 0.01:
        change_at = choose.randint(1030, 1110)
        return change_at + choose.randint(3, 20), change_at
    if choose.random() < 0.05:
        change_at = choose.randint(70, 250)
        return change_at + choose.randint(3, 30), change_at
    change_at = choose.choice((*range(5, 16), *range(9, 32), *range(33, 50)))
    return change_at + choose.randint(3, 16), change_at


def _fragment(choose, source, base, net):
    kind = choose.choice(source.types)
    values = choose.choice(function_sources.VALUES[kind])
    in_net = base != "function" and not source.argument and choose.random() < 0.5
    top = MODULES.index(net if in_net else "main")
    level = choose.randint(0, top)
    home = MODULES[level]
    value_layers, statement_layers = [], []
    for _ in range(0 if kind == "statement" else choose.choice((0, 0, 1, 1, 2))):
        rows = function_sources.VALUE_LAYERS
        if source.argument:
            rows = [row for row in rows if not row[1]]
        level = choose.randint(level, top)
        value_layers.append(Layer(*choose.choice(rows), MODULES[level]))
    for _ in range(0 if source.argument else choose.choice((0, 1, 1, 2))):
        level = choose.randint(level, top)
        statement_layers.append(
            Layer(*choose.choice(function_sources.STATEMENT_LAYERS), MODULES[level])
        )
    return Fragment(
        source=source,
        home=home,
        values=values if choose.random() < 0.95 else (values[0], values[0]),
        use=choose.choice(function_sources.USES[kind]),
        value_layers=tuple(value_layers),
        statement_layers=tuple(statement_layers),
        in_net=in_net,
        after=choose.random() < 0.3,
    )


# ---- Writing -------------------------------------------------------------------------------------


def indented(text, depth):
    return "\n".join(" " * depth + line if line else line for line in text.splitlines())


def _named(text, name, home, reader):
    """The text as `reader` writes it: names of `home` with its module before them."""
    module = "" if home == reader else f"{home}."
    here = "sys.modules[__name__]" if home == reader else home
    text = re.sub(r"\$n(_\w+)?", lambda m: f"{module}{name}{m[1] or ''}", text)
    text = re.sub(r"\$N(_\w+)?", lambda m: f"{module}{name.upper()}{m[1] or ''}", text)
    return text.replace("$m", here).replace("$i", name).replace("$I", name.upper())


class Writer:
    """Puts the text of a program together."""

    def __init__(self, program):
        self.program = program
        self.text = {module: [] for module in MODULES[:3]}
        self.places = {"net": [], "before": [], "after": []}
        self.changes, self.undos, self.arguments = [], [], []
        for number, fragment in enumerate(program.fragments):
            self._add(number, fragment)

    def _add(self, number, fragment):
        source, (v, w) = fragment.source, fragment.values
        name, parameter = f"s{number}", f"a{number}"

        def filled(text, reader, v=v, w=w):
            text = _named(text, name, fragment.home, reader)
            text = text.replace("$p", fragment.home).replace("$a", parameter)
            return text.replace("$v", repr(v)).replace("$w", repr(w))

        def expression(reader):
            return filled(source.expression, reader)

        self.text[fragment.home].append(filled(source.setup, fragment.home))
        for i, layer in enumerate(fragment.value_layers):
            expression = self._wrap(layer, f"v{number}_{i}", expression, "$e")

        def statement(reader, expression=expression):
            return fragment.use.replace("$e", expression(reader))

        for i, layer in enumerate(fragment.statement_layers):
            statement = self._wrap(layer, f"t{number}_{i}", statement, "$s")
        if fragment.in_net:
            self.places["net"].append(statement(self.program.net))
        else:
            after = fragment.after and self.program.base != "function"
            self.places["after" if after else "before"].append(statement("main"))
        if source.argument:
            self.arguments.append((parameter, filled(source.argument, "driver")))
        self.changes.append(
            (filled(source.change, "driver"), filled(source.change, "driver", w, v))
        )
        self.undos.append(filled(source.undo, "driver"))

    def _wrap(self, layer, name, inside, mark):
        def around(text, reader):
            text = _named(text, name, layer.module, reader)
            if mark == "$e":
                return text.replace("$e", inside(reader))
            body = inside(reader)
            text = text.replace("$$s", indented(body, 8)).replace("$0s", body)
            return text.replace("$s", indented(body, 4))

        if layer.setup:
            self.text[layer.module].append(around(layer.setup, layer.module))
        return lambda reader: around(layer.text, reader)

    def files(self, device, folder):
        """The package: paths and texts."""
        program = self.program
        made = {
            module: [
                PREAMBLE + IMPORTS[module] + f"DEVICE = torch.device({device!r})\n"
                f"FOLDER = {folder!r}\nSEEN = []",
                *lines,
            ]
            for module, lines in self.text.items()
        }
        main = made["main"]
        if program.base != "function":
            body = "\n".join(self.places["net"]) or "pass"
            made[program.net].append(NET.replace("$s", indented(body, 8)))
            net = "" if program.net == "main" else f"{program.net}."
            main.append(f"model = {net}Net().to(DEVICE)")
        if program.base == "training":
            main.append("spare = nn.Parameter(torch.zeros(6, device=DEVICE))")
            main.append(self._optimizer())
        main.append(self._step())
        if program.beside:
            main.append(BESIDE)
        main.append(TARGETS[program.target])
        paths = {"inner": "deep/inner.py", "helper": "helper.py", "main": "main.py"}
        files = {paths[module]: "\n".join(lines) + "\n" for module, lines in made.items()}
        return files | {"__init__.py": "", "deep/__init__.py": ""}

    def _optimizer(self):
        parameters = "model.parameters()"
        if self.program.groups == 2:
            parameters = ", ".join(
                f"{{'params': list(model.parameters()){part}}}" for part in ("[:2]", "[2:]")
            )
            parameters = f"[{parameters}]"
        name = self.program.optimizer
        if name.startswith("custom "):
            rule = indented(function_changes.CUSTOM[name[7:]], 12)
            return CUSTOM.replace("$s", rule) + f"\noptimizer = Custom({parameters})"
        text = function_changes.OPTIMIZERS[name].replace("$p", parameters)
        return f"optimizer = {text}"

    def _step(self):
        program = self.program
        before = "\n".join(self.places["before"]) or "pass"
        after = "\n".join(self.places["after"]) or "pass"
        text = STEPS[program.base]
        text = text.replace("$a", "".join(f", {name}" for name, _ in self.arguments))
        text = text.replace("$r", program.result).replace("$z", program.zero_grad)
        text = text.replace("$$s", indented(before, 8)).replace("$$t", indented(after, 8))
        return text.replace("$s", indented(before, 4)).replace("$t", indented(after, 4))

    def actions(self):
        """Code by the call before which it runs; and what runs after each call, and at the end."""
        program = self.program
        again_at = program.change_at + program.again_after
        each = ""
        if program.change:
            change = program.change
            actions = {0: change.setup, program.change_at: change.code}
            if program.again_after and change.again:
                actions[again_at] = change.again
            if change.needs == "schedule":
                each = "schedule.step()"
            return actions, each, [change.undo, *self.undos]
        change, back = self.changes[0]
        actions = {program.change_at: change}
        if program.again_after and change:
            actions[again_at] = back
        return actions, each, self.undos


def shown(program):
    """The program for a reader: what differs from the preamble, the calls and the changes."""
    writer = Writer(program)
    actions, each, _ = writer.actions()
    lines = []
    for path, text in writer.files("lazy", "/tmp").items():
        for common in (PREAMBLE, *IMPORTS.values(), *NET.split("$s")):
            text = text.replace(common, "# the model\n" if "class Net" in common else "")
        text = "\n".join(text.split("\n")[3:]).strip()  # DEVICE, FOLDER, SEEN
        if text:
            lines += [f"# ---- {path}", text]
    lines.append(f"# ---- {program.calls} calls of main.target({_call(writer)})")
    for call, code in sorted(actions.items()):
        if code:
            lines.append(f"# before call {call}:\n{code}")
    if each:
        lines.append(f"# after each call:\n{each}")
    return "\n".join(lines)


def _call(writer):
    return ", ".join(["x", "y", *(text for _, text in writer.arguments)])


def smaller(program):
    """Programs with less in them that change the same thing."""
    replace = dataclasses.replace
    first = 0 if program.change else 1
    for i in range(first, len(program.fragments)):
        yield replace(program, fragments=program.fragments[:i] + program.fragments[i + 1 :])
    for i, fragment in enumerate(program.fragments):
        for name in ("statement_layers", "value_layers"):
            layers = getattr(fragment, name)
            for k in range(len(layers)):
                fewer = replace(fragment, **{name: layers[:k] + layers[k + 1 :]})
                yield replace(
                    program,
                    fragments=(*program.fragments[:i], fewer, *program.fragments[i + 1 :]),
                )
        if fragment.home != "main" and not fragment.in_net:
            layers = {
                name: tuple(replace(layer, module="main") for layer in getattr(fragment, name))
                for name in ("statement_layers", "value_layers")
            }
            moved = replace(fragment, home="main", **layers)
            yield replace(
                program, fragments=(*program.fragments[:i], moved, *program.fragments[i + 1 :])
            )
        if fragment.in_net:
            yield replace(
                program,
                fragments=(
                    *program.fragments[:i],
                    replace(fragment, in_net=False),
                    *program.fragments[i + 1 :],
                ),
            )
    if not program.change and program.base != "function":
        fragments = tuple(replace(f, in_net=False, after=False) for f in program.fragments)
        yield replace(program, base="function", fragments=fragments, beside=False)
        if program.base == "training":
            yield replace(program, base="inference")
    for name, simple in (
        ("target", "function"),
        ("result", "x"),
        ("again_after", 0),
        ("groups", 1),
        ("looks", ()),
        ("sizes", (4,)),
        ("keywords", False),
        ("beside", False),
        ("zero_grad", ""),
        ("reads", True),
    ):
        if getattr(program, name) != simple:
            yield replace(program, **{name: simple})
    if program.change_at > 7:
        yield replace(program, change_at=7, calls=10 + program.again_after)
    if program.calls > program.change_at + program.again_after + 3:
        yield replace(program, calls=program.change_at + program.again_after + 3)
