"""Where a Python function can find a value, and how that value can change between two calls.

Rows of text for function_generator.py. In each, $n is a name and $N a class of its own, $v the
value at first, $w the value later. `expression` and `change` may stand in another module than
`setup`: names are then written with the module before them.
"""

# ruff: noqa: E501 (a row is easier to read than a broken one)

from typing import NamedTuple

ANY = ("float", "int", "bool", "str", "none", "odd", "splits")
NUMBERS = ("float", "int")


class Source(NamedTuple):
    kind: str
    setup: str
    expression: str
    change: str = ""
    """Between two calls; empty: the function itself changes it."""
    types: tuple[str, ...] = ANY
    undo: str = ""
    argument: str = ""
    """What is passed to the function in each call; the expression then reads $a."""


VALUES = {
    "float": [(1.5, 2.5), (0.5, 0.75), (2.0, 1.25), (1.0, 3.0), (2.5, 0.5), (0.75, 2.0)],
    "int": [(2, 3), (3, 1), (1, 2)],
    "bool": [(True, False), (False, True)],
    "str": [("relu", "tanh"), ("tanh", "sigmoid"), ("sigmoid", "relu")],
    "none": [(None, 0.5), (2.5, None)],
    "odd": [(1, True), (2, 2.0), (0.0, -0.0), (1.0, 1)],
    "splits": [([2, 4], [4, 2]), ([3, 3], [1, 5]), ([1, 2, 3], [3, 2, 1])],
}

# What a function does with a value e of each type; x stays of its size.
USES = {
    "float": [
        "x = x * $e",
        "x = x + $e",
        "x = x - $e * 0.5",
        "x = torch.add(x, x.tanh(), alpha=$e)",
        "x = x * min($e, 2.0)",
        "x = x / max($e, 1.0)",
        "x = x.clamp(-$e, $e)",
        "if $e > 1.9:\n    x = x.tanh()",
        "x = x * math.sqrt($e)",
        "x = x * round($e)",
        "x = x * float('{:.2f}'.format($e))",
        "x = x + torch.full_like(x, $e)",
        "x = x * torch.tensor($e, device=DEVICE)",
        "x = F.dropout(x, $e / 5)",
        "x = F.leaky_relu(x, $e)",
        "x = F.layer_norm(x, (6,), eps=$e)",
        "x = x.roll(int($e), -1)",
        "x = x * (1 - $e) ** 2",
        "x = torch.where(x > $e - 1, x, x * 0.5)",
        "k = $e\nx = x * k if k < 2 else x - k",
        "if $e > 1.9:\n    raise ValueError('too large')\nx = x * 2",
        "x.mul_($e) if not x.requires_grad else None",
    ],
    "int": [
        "for _ in range($e):\n    x = (x * 1.5).tanh()",
        "x = x + x[..., : $e].sum(-1, keepdim=True)",
        "x = x.roll($e, -1)",
        "x = x.tanh() ** $e",
        "x = torch.stack([x] * $e).sum(0)",
        "x = x * $e",
        "if $e % 2:\n    x = x.sigmoid()",
        "x = x[:, torch.arange(6, device=DEVICE) // $e]",
        "x = x + sum(range($e))",
    ],
    "bool": [
        "if $e:\n    x = x.tanh()",
        "x = x.relu() if $e else x.sigmoid()",
        "x = x + x.sum(-1, keepdim=True) if not $e else x",
        "x = x * (2.0 if $e else 0.5)",
        "x = F.dropout(x, 0.5, training=$e)",
        "x = x.tanh() if bool($e) is True else x * 2",
    ],
    "str": [
        "x = getattr(torch, $e)(x)",
        "x = {'relu': torch.relu, 'tanh': torch.tanh, 'sigmoid': torch.sigmoid}[$e](x)",
        "if $e == 'tanh':\n    x = x.tanh()\nelse:\n    x = x * len($e)",
        "x = x * (3 if $e.startswith('t') else 2)",
    ],
    "none": [
        "k = $e\nx = x if k is None else x * k",
        "x = x * ($e or 2.0)",
        "if $e is not None:\n    x = x.tanh()",
    ],
    "odd": [
        "x = x * len(type($e).__name__)",
        "x = x * len(repr($e))",
        "x = x + math.copysign(1.0, $e)",
    ],
    "splits": [
        "x = torch.cat([p * (i + 1) for i, p in enumerate(x.split(list($e), 1))], 1)",
        "a, *_ = $e\nx = x + x[:, : int(a)].sum(1, keepdim=True)",
        "x = x * float(sum(i * int(k) for i, k in enumerate($e)))",
    ],
}

_OBJECT = "class $N:\n    def __init__(self):\n        self.a = $v\n$n = $N()"

# fmt: off
SOURCES = [
    # ---- Names -----------------------------------------------------------------------------------
    Source("global", "$n = $v", "$n", "$n = $w"),
    Source("global", "$n = $v", "$n", "$n = $w"),
    Source("global: by globals()", "$n = $v\ndef $n_f():\n    return globals()['$n']", "$n_f()", "$n = $w"),
    Source("global: in a tuple", "$n = ($v, 0)", "$n[0]", "$n = ($w, 0)"),
    Source(
        "global: deleted",
        "$n = $v\ndef $n_f():\n    try:\n        return $n\n    except NameError:\n        return $w",
        "$n_f()",
        "del $n",
    ),
    Source("a builtin hidden by a global", "def $n():\n    return abs(-1.5)", "$n()",
           "$m.abs = lambda x: 2.5", ("float",)),
    Source("eval", "$n = $v", "eval('$n')", "$n = $w"),
    Source("vars of a module", "$n = $v\n$n_m = sys.modules[__name__]", "vars($n_m)['$i']",
           "$n = $w"),
    Source("getattr of a module", "$n = $v\n$n_m = sys.modules[__name__]",
           "getattr($n_m, '$i')", "$n = $w"),
    Source("module of the library", "math.$i = $v", "math.$i", "math.$i = $w",
           undo="if hasattr(math, '$i'):\n    del math.$i"),
    Source("attribute of torch", "F.$i = $v", "torch.nn.functional.$i",
           "F.$i = $w",
           undo="if hasattr(F, '$i'):\n    del F.$i"),
    Source("import in the function",
           "$n = $v\ndef $n_f():\n    from .$p import $n as k\n    return k",
           "$n_f()", "$n = $w"),
    Source("__getattr__ of a module", "$n_k = {'$n': $v}\ndef __getattr__(name):\n"
           "    for item in list(globals().values()):\n"
           "        if isinstance(item, dict) and name in item and '__name__' not in item:\n"
           "            return item[name]\n    raise AttributeError(name)",
           "$m.$i", "$n_k['$i'] = $w"),
    # ---- Functions -------------------------------------------------------------------------------
    Source("function replaced", "def $n():\n    return $v", "$n()", "$n = lambda: $w"),
    Source("function in a dict", "def $n_f():\n    return $v\n$n = {'f': $n_f}", "$n['f']()",
           "$n['f'] = lambda: $w"),
    Source("__code__ replaced", "def $n():\n    return $v", "$n()",
           "$n.__code__ = (lambda: $w).__code__"),
    Source("__defaults__", "def $n(a=$v):\n    return a", "$n()", "$n.__defaults__ = ($w,)"),
    Source("__kwdefaults__", "def $n(*, a=$v):\n    return a", "$n()",
           "$n.__kwdefaults__['a'] = $w"),
    Source("mutable default", "def $n(a=[$v]):\n    return a[0]", "$n()",
           "$n.__defaults__[0][0] = $w"),
    Source("attribute of a function", "def $n():\n    return $n.a\n$n.a = $v", "$n()",
           "$n.a = $w"),
    Source("closure", "def $n_make(a):\n    def get():\n        return a\n    def put(b):\n"
           "        nonlocal a\n        a = b\n    return get, put\n$n, $n_put = $n_make($v)",
           "$n()", "$n_put($w)"),
    Source("closure: cell", "def $n_make(a):\n    return lambda: (lambda: a)()\n$n = $n_make($v)",
           "$n()", "$n.__closure__[0].cell_contents = $w"),
    Source("closure: list", "def $n_make(a):\n    return (lambda: a[0]), a\n"
           "$n, $n_a = $n_make([$v])", "$n()", "$n_a[0] = $w"),
    Source("partial", "$n = functools.partial(lambda a, b: b, 1, b=$v)", "$n()",
           "$n = functools.partial(lambda a, b: b, 1, b=$w)"),
    Source("partial: keywords", "$n = functools.partial(lambda a, b: b, 1, b=$v)", "$n()",
           "$n.keywords['b'] = $w"),
    Source("partial of a method", "class $N:\n    a = $v\n    def get(self):\n        return self.a\n"
           "$n = functools.partial($N().get)", "$n()", "$n.func.__self__.a = $w"),
    Source("partialmethod", "class $N:\n    def get(self, a):\n        return a\n"
           "    one = functools.partialmethod(get, $v)\n$n = $N()", "$n.one()",
           "$N.one = functools.partialmethod($N.get, $w)"),
    Source("lru_cache", "$n_a = $v\n@functools.lru_cache\ndef $n():\n    return $n_a", "$n()",
           "$n_a = $w\n$n.cache_clear()"),
    Source("lru_cache: not cleared", "$n_a = $v\n@functools.lru_cache\ndef $n():\n    return $n_a",
           "$n()", "$n_a = $w"),
    Source("singledispatch", "@functools.singledispatch\ndef $n(a):\n    return $v", "$n(1)",
           "$n.register(int, lambda a: $w)"),
    Source("decorated", "def $n_d(f):\n    @functools.wraps(f)\n    def inner():\n"
           "        return $n_k[0]\n    return inner\n$n_k = [$v]\n@$n_d\ndef $n():\n    return None",
           "$n()", "$n_k[0] = $w"),
    # ---- Classes ---------------------------------------------------------------------------------
    Source("class attribute", "class $N:\n    a = $v", "$N.a", "$N.a = $w"),
    Source("class attribute: through self", "class $N:\n    a = $v\n    def get(self):\n"
           "        return self.a\n$n = $N()", "$n.get()", "$N.a = $w"),
    Source("class attribute: through an object", "class $N:\n    a = $v\n$n = $N()", "$n.a",
           "$N.a = $w"),
    Source("class attribute: inherited", "class $N_b:\n    a = $v\nclass $N($N_b):\n    pass\n"
           "$n = $N()", "$n.a", "$N_b.a = $w"),
    Source("class attribute: hidden by a subclass's", "class $N_b:\n    a = $v\nclass $N($N_b):\n"
           "    pass\n$n = $N()", "$n.a", "$N.a = $w"),
    Source("class attribute: hidden by an object's", "class $N:\n    a = $v\n$n = $N()", "$n.a",
           "$n.a = $w"),
    Source("class attribute: list", "class $N:\n    a = [$v]\n$n = $N()", "$n.a[0]",
           "$N.a[0] = $w"),
    Source("class attribute: dict", "class $N:\n    a = {'k': $v}\n$n = $N()",
           "type($n).a['k']", "$N.a['k'] = $w"),
    Source("attribute", _OBJECT, "$n.a", "$n.a = $w"),
    Source("attribute: by setattr", _OBJECT, "getattr($n, 'a')", "setattr($n, 'a', $w)"),
    Source("attribute: in __dict__", _OBJECT, "vars($n)['a']", "$n.__dict__['a'] = $w"),
    Source("attribute: __dict__ replaced", _OBJECT, "$n.a", "$n.__dict__ = {'a': $w}"),
    Source("attribute: object replaced", _OBJECT, "$n.a", "$n = $N()\n$n.a = $w"),
    Source("attribute: of an object's object", _OBJECT + "\n$n.b = $N()", "$n.b.a", "$n.b.a = $w"),
    Source("attribute: new", _OBJECT, "getattr($n, 'b', $v)", "$n.b = $w"),
    Source("attribute: deleted", _OBJECT + "\n$n.b = $v", "getattr($n, 'b', $w)", "del $n.b"),
    Source("hasattr", _OBJECT, "($w if hasattr($n, 'b') else $v)", "$n.b = 1"),
    Source("__class__ assigned", "class $N:\n    a = $v\nclass $N_b:\n    a = $w\n$n = $N()",
           "$n.a", "$n.__class__ = $N_b"),
    Source("isinstance", "class $N:\n    pass\nclass $N_b:\n    pass\n$n = $N()",
           "($v if isinstance($n, $N) else $w)", "$n.__class__ = $N_b"),
    Source("__bases__ assigned", "class $N_o:\n    pass\nclass $N_b($N_o):\n    a = $v\n"
           "class $N_c($N_o):\n    a = $w\nclass $N($N_b):\n    pass\n$n = $N()", "$n.a",
           "$N.__bases__ = ($N_c,)"),
    Source("ABC registered", "import abc\nclass $N(abc.ABC):\n    pass\nclass $N_b:\n    pass\n"
           "$n = $N_b()", "($w if isinstance($n, $N) else $v)", "$N.register($N_b)"),
    Source("slots", "class $N:\n    __slots__ = ('a',)\n$n = $N()\n$n.a = $v", "$n.a", "$n.a = $w"),
    Source("slots: method", "class $N:\n    __slots__ = ('a',)\n    def get(self):\n"
           "        return self.a\n$n = $N()\n$n.a = $v", "$n.get()", "$n.a = $w"),
    Source("slots: inherited", "class $N_b:\n    __slots__ = ('a',)\nclass $N($N_b):\n"
           "    __slots__ = ('b',)\n$n = $N()\n$n.a = $v", "$n.a", "$n.a = $w"),
    Source("slots: list inside", "class $N:\n    __slots__ = ('a',)\n$n = $N()\n$n.a = [$v]",
           "$n.a[0]", "$n.a[0] = $w"),
    Source("dataclass", "@dataclasses.dataclass\nclass $N:\n    a: object = 0\n$n = $N($v)", "$n.a",
           "$n.a = $w"),
    Source("dataclass: slots", "@dataclasses.dataclass(slots=True)\nclass $N:\n    a: object\n"
           "$n = $N($v)", "$n.a", "$n.a = $w"),
    Source("dataclass: frozen", "@dataclasses.dataclass(frozen=True)\nclass $N:\n    a: object\n"
           "$n = $N($v)", "$n.a", "$n = dataclasses.replace($n, a=$w)"),
    Source("dataclass: frozen, forced", "@dataclasses.dataclass(frozen=True)\nclass $N:\n"
           "    a: object\n$n = $N($v)", "$n.a", "object.__setattr__($n, 'a', $w)"),
    Source("dataclass: astuple", "@dataclasses.dataclass\nclass $N:\n    a: object\n$n = $N($v)",
           "dataclasses.asdict($n)['a']", "$n.a = $w"),
    Source("namedtuple", "$N = collections.namedtuple('$N', 'a b')\n$n = $N($v, 0)", "$n.a",
           "$n = $n._replace(a=$w)"),
    Source("namedtuple: list inside", "$N = collections.namedtuple('$N', 'a b')\n$n = $N([$v], 0)",
           "$n.a[0]", "$n.a[0] = $w"),
    Source("enum", "class $N(enum.Enum):\n    A = 1\n    B = 2\n$n = $N.A",
           "($v if $n is $N.A else $w)", "$n = $N.B"),
    Source("enum: value", "class $N(enum.Enum):\n    A = ($v, 1)\n    B = ($w, 2)\n$n = $N.A",
           "$n.value[0]", "$n = $N.B"),
    Source("enum: value changed", "class $N(enum.Enum):\n    A = ($v, 1)", "$N.A.value[0]",
           "$N.A._value_ = ($w, 1)"),
    Source("property", "class $N:\n    def __init__(self):\n        self._a = $v\n    @property\n"
           "    def a(self):\n        return self._a\n$n = $N()", "$n.a", "$n._a = $w"),
    Source("property replaced", "class $N:\n    @property\n    def a(self):\n        return $v\n"
           "$n = $N()", "$n.a", "$N.a = property(lambda self: $w)"),
    Source("property: of a global", "$n_k = $v\nclass $N:\n    @property\n    def a(self):\n"
           "        return $n_k\n$n = $N()", "$n.a", "$n_k = $w"),
    Source("cached_property", "class $N:\n    b = $v\n    @functools.cached_property\n"
           "    def a(self):\n        return self.b\n$n = $N()", "$n.a", "$n.b = $w\ndel $n.a"),
    Source("descriptor", "class $N_d:\n    def __get__(self, item, owner=None):\n"
           "        return self.k\nclass $N:\n    a = $N_d()\nvars($N)['a'].k = $v\n$n = $N()",
           "$n.a", "vars($N)['a'].k = $w"),
    Source("descriptor: own dict", "class $N_d:\n    def __init__(self):\n        self.of = {}\n"
           "    def __get__(self, item, owner=None):\n        return self.of[type(item).__name__]\n"
           "    def __set__(self, item, value):\n        self.of[type(item).__name__] = value\n"
           "class $N:\n    a = $N_d()\n$n = $N()\n$n.a = $v", "$n.a", "$n.a = $w"),
    Source("__getattr__", "class $N:\n    def __init__(self):\n        self.of = {'a': $v}\n"
           "    def __getattr__(self, name):\n        return self.of[name]\n$n = $N()", "$n.a",
           "$n.of['a'] = $w"),
    Source("__getattr__ replaced", "class $N:\n    def __getattr__(self, name):\n"
           "        return $v\n$n = $N()", "$n.a", "$N.__getattr__ = lambda self, name: $w"),
    Source("__getattribute__", "class $N:\n    k = $v\n    def __getattribute__(self, name):\n"
           "        return object.__getattribute__(self, 'k')\n$n = $N()", "$n.a", "$N.k = $w"),
    Source("__getattr__ added", "class $N:\n    pass\n$n = $N()", "getattr($n, 'a', $v)",
           "$N.__getattr__ = lambda self, name: $w"),
    Source("metaclass attribute", "class $N_m(type):\n    a = $v\nclass $N(metaclass=$N_m):\n"
           "    pass", "$N.a", "$N_m.a = $w"),
    Source("metaclass property", "class $N_m(type):\n    @property\n    def a(cls):\n"
           "        return cls.b\nclass $N(metaclass=$N_m):\n    b = $v", "$N.a", "$N.b = $w"),
    Source("method replaced", "class $N:\n    def get(self):\n        return $v\n$n = $N()",
           "$n.get()", "$N.get = lambda self: $w"),
    Source("method replaced: base", "class $N_b:\n    def get(self):\n        return $v\n"
           "class $N($N_b):\n    def get(self):\n        return super().get()\n$n = $N()",
           "$n.get()", "$N_b.get = lambda self: $w"),
    Source("method replaced: on an object", "class $N:\n    def get(self):\n        return $v\n"
           "$n = $N()", "$n.get()", "$n.get = lambda: $w"),
    Source("method: bound", "class $N:\n    def __init__(self):\n        self.a = $v\n"
           "    def get(self):\n        return self.a\n$n_o = $N()\n$n = $n_o.get", "$n()",
           "$n_o.a = $w"),
    Source("staticmethod", "class $N:\n    @staticmethod\n    def get():\n        return $v",
           "$N.get()", "$N.get = staticmethod(lambda: $w)"),
    Source("classmethod", "class $N:\n    a = $v\n    @classmethod\n    def get(cls):\n"
           "        return cls.a\n$n = $N()", "$n.get()", "$N.a = $w"),
    Source("__call__", "class $N:\n    def __init__(self):\n        self.a = $v\n"
           "    def __call__(self):\n        return self.a\n$n = $N()", "$n()", "$n.a = $w"),
    Source("__call__ replaced", "class $N:\n    def __call__(self):\n        return $v\n$n = $N()",
           "$n()", "$N.__call__ = lambda self: $w"),
    Source("__getitem__", "class $N:\n    def __init__(self):\n        self.a = $v\n"
           "    def __getitem__(self, key):\n        return self.a\n$n = $N()", "$n[0]",
           "$n.a = $w"),
    Source("__len__", "class $N:\n    a = $v\n    def __len__(self):\n        return self.a\n"
           "$n = $N()", "len($n)", "$n.a = $w", ("int",)),
    Source("__float__", "class $N:\n    a = $v\n    def __float__(self):\n        return self.a\n"
           "$n = $N()", "float($n)", "$N.a = $w", ("float",)),
    Source("__bool__", "class $N:\n    a = $v\n    def __bool__(self):\n        return self.a\n"
           "$n = $N()", "bool($n)", "$N.a = $w", ("bool",)),
    Source("__index__", "class $N:\n    a = $v\n    def __index__(self):\n        return self.a\n"
           "$n = $N()", "operator.index($n)", "$n.a = $w", ("int",)),
    Source("__eq__", "class $N:\n    a = $v\n    def __eq__(self, other):\n        return self.a\n"
           "$n = $N()", "($n == 3)", "$N.a = $w", ("bool",)),
    Source("__contains__", "class $N:\n    a = $v\n    def __contains__(self, other):\n"
           "        return self.a\n$n = $N()", "(3 in $n)", "$N.a = $w", ("bool",)),
    Source("__iter__", "class $N:\n    a = $v\n    def __iter__(self):\n        yield self.a\n"
           "$n = $N()", "list($n)[0]", "$N.a = $w"),
    Source("__mul__", "class $N:\n    a = $v\n    def __mul__(self, other):\n"
           "        return self.a * other\n$n = $N()", "($n * 1.0)", "$N.a = $w", ("float",)),
    Source("__str__", "class $N:\n    a = $v\n    def __str__(self):\n        return self.a\n"
           "$n = $N()", "f'{$n}'", "$n.a = $w", ("str",)),
    Source("__enter__", "class $N:\n    a = $v\n    def __enter__(self):\n        return self.a\n"
           "    def __exit__(self, *error):\n        pass\n$n_o = $N()\ndef $n():\n"
           "    with $n_o as k:\n        return k", "$n()", "$n_o.a = $w"),
    Source("number subclass", "class $N(float):\n    pass\n$n = $N(1.0)\n$n.a = $v", "$n.a",
           "$n.a = $w"),
    Source("str subclass", "class $N(str):\n    a = $v\n$n = $N('k')", "$n.a", "$N.a = $w"),
    Source("dict subclass: attribute", "class $N(dict):\n    pass\n$n = $N()\n$n.a = $v", "$n.a",
           "$n.a = $w"),
    Source("list subclass: attribute", "class $N(list):\n    pass\n$n = $N()\n$n.a = $v", "$n.a",
           "$n.a = $w"),
    Source("tuple subclass: attribute", "class $N(tuple):\n    pass\n$n = $N()\n$n.a = $v", "$n.a",
           "$n.a = $w"),
    Source("dict subclass: __getitem__", "class $N(dict):\n    k = $v\n"
           "    def __getitem__(self, name):\n        return self.k\n$n = $N(a=0)", "$n['a']",
           "$N.k = $w"),
    Source("dict subclass: __missing__", "class $N(dict):\n    k = $v\n"
           "    def __missing__(self, name):\n        return self.k\n$n = $N()", "$n['a']",
           "$N.k = $w"),
    Source("__new__", "class $N:\n    def __new__(cls):\n        self = object.__new__(cls)\n"
           "        self.a = cls.k\n        return self\n    k = $v", "$N().a", "$N.k = $w"),
    Source("__init__ of a global", "$n_k = $v\nclass $N:\n    def __init__(self):\n"
           "        self.a = $n_k", "$N().a", "$n_k = $w"),
    Source("class replaced", "class $N:\n    a = $v", "$N().a",
           "$N = type('$I', (), {'a': $w})"),
    Source("__init_subclass__", "class $N_b:\n    def __init_subclass__(cls, **k):\n"
           "        cls.a = $n_k\n$n_k = $v\ndef $n():\n    class $N($N_b):\n        pass\n"
           "    return $N.a", "$n()", "$n_k = $w"),
    Source("match", "class $N:\n    __match_args__ = ('a',)\n    def __init__(self):\n"
           "        self.a, self.b = $v, $w\n$n_o = $N()\ndef $n():\n    match $n_o:\n"
           "        case $N(k):\n            return k", "$n()", "$N.__match_args__ = ('b',)"),
    # ---- Containers ------------------------------------------------------------------------------
    Source("list", "$n = [0, $v]", "$n[1]", "$n[1] = $w"),
    Source("list: replaced in place", "$n = [0, $v]", "$n[-1]", "$n[:] = [1, $w]"),
    Source("list: inserted", "$n = [$v, 0]", "$n[0]", "$n.insert(0, $w)"),
    Source("list: length", "$n = [7] * $v", "len($n)", "$n[:] = [7] * $w", ("int",)),
    Source("list: iterated", "$n = [$v]", "[k for k in $n][-1]", "$n.append($w)"),
    Source("list in a tuple", "$n = ([$v], 0)", "$n[0][0]", "$n[0][0] = $w"),
    Source("tuple in a list", "$n = [($v, 0)]", "$n[0][0]", "$n[0] = ($w, 0)"),
    Source("dict", "$n = {'a': $v}", "$n['a']", "$n['a'] = $w"),
    Source("dict: update", "$n = {'a': $v, 'b': 1}", "$n.get('a')", "$n.update(a=$w)"),
    Source("dict: get", "$n = {}", "$n.get('a', $v)", "$n['a'] = $w"),
    Source("dict: in", "$n = {}", "($w if 'a' in $n else $v)", "$n['a'] = 0"),
    Source("dict: order", "$n = {'a': $v, 'b': $w}", "next(iter($n.values()))",
           "$n['a'] = $n.pop('a')"),
    Source("dict: unpacked", "$n = {'a': $v}\ndef $n_f(a):\n    return a", "$n_f(**$n)",
           "$n['a'] = $w"),
    Source("dict in a list", "$n = [{'a': {'b': $v}}]", "$n[0]['a']['b']", "$n[0]['a']['b'] = $w"),
    Source("dict: KeyError", "$n = {}\ndef $n_f():\n    try:\n        return $n['a']\n"
           "    except KeyError:\n        return $v", "$n_f()", "$n['a'] = $w"),
    Source("set", "$n = {1, 2}", "($v if 1 in $n else $w)", "$n.discard(1)"),
    Source("set: length", "$n = set(range($v))", "len($n)", "$n.clear()\n$n.update(range($w))",
           ("int",)),
    Source("set: iterated", "$n = {$v}", "next(iter($n))", "$n.clear()\n$n.add($w)",
           ("float", "int", "bool", "str")),
    Source("frozenset replaced", "$n = frozenset([1])", "($v if 1 in $n else $w)",
           "$n = frozenset()"),
    Source("deque", "$n = collections.deque([$v, 0])", "$n[0]", "$n[0] = $w"),
    Source("deque: rotated", "$n = collections.deque([$v, $w])", "$n[0]", "$n.rotate(1)"),
    Source("deque: maxlen", "$n = collections.deque([$v], maxlen=1)", "$n[-1]", "$n.append($w)"),
    Source("OrderedDict", "$n = collections.OrderedDict(a=$v)", "$n['a']", "$n['a'] = $w"),
    Source("OrderedDict: order", "$n = collections.OrderedDict(a=$v, b=$w)",
           "list($n.values())[0]", "$n.move_to_end('a')"),
    Source("defaultdict", "$n = collections.defaultdict(int, a=$v)", "$n['a']", "$n['a'] = $w"),
    Source("defaultdict: factory", "$n_k = $v\n$n = collections.defaultdict(lambda: $n_k)",
           "$n['a']", "$n_k = $w\n$n.clear()"),
    Source("defaultdict: factory replaced", "$n = collections.defaultdict(lambda: $v)",
           "$n.default_factory()", "$n.default_factory = lambda: $w"),
    Source("Counter", "$n = collections.Counter(a=$v)", "$n['a']", "$n['a'] = $w", NUMBERS),
    Source("ChainMap", "$n = collections.ChainMap({}, {'a': $v})", "$n['a']", "$n['a'] = $w"),
    Source("UserDict", "$n = collections.UserDict(a=$v)", "$n['a']", "$n['a'] = $w"),
    Source("UserList", "$n = collections.UserList([$v])", "$n[0]", "$n[0] = $w"),
    Source("SimpleNamespace", "$n = types.SimpleNamespace(a=$v)", "$n.a", "$n.a = $w"),
    Source("mappingproxy", "$n_k = {'a': $v}\n$n = types.MappingProxyType($n_k)", "$n['a']",
           "$n_k['a'] = $w"),
    Source("dict view", "$n_k = {'a': $v}\n$n = $n_k.values()", "next(iter($n))", "$n_k['a'] = $w"),
    Source("array.array", "$n = array.array('d', [$v])", "$n[0]", "$n[0] = $w", ("float",)),
    Source("bytearray", "$n = bytearray([$v])", "$n[0]", "$n[0] = $w", ("int",)),
    Source("memoryview", "$n_k = bytearray([$v])\n$n = memoryview($n_k)", "$n[0]",
           "$n_k[0] = $w", ("int",)),
    Source("ctypes", "$n = ctypes.c_double($v)", "$n.value", "$n.value = $w", ("float",)),
    Source("StringIO", "$n = io.StringIO($v)", "$n.getvalue()", "$n.seek(0)\n$n.truncate()\n$n.write($w)",
           ("str",)),
    Source("queue", "$n = queue.Queue()\n$n.put($v)", "$n.queue[0]", "$n.get()\n$n.put($w)"),
    Source("queue: size", "$n = queue.Queue()\n$n.put(1)", "($v if $n.qsize() == 1 else $w)",
           "$n.put(1)"),
    Source("weakref", "class $N:\n    pass\n$n_k = $N()\n$n = weakref.ref($n_k)",
           "($v if $n() is not None else $w)", "del $n_k"),
    Source("weakref: attribute", "class $N:\n    pass\n$n_k = $N()\n$n_k.a = $v\n"
           "$n = weakref.ref($n_k)", "$n().a", "$n_k.a = $w"),
    Source("WeakKeyDictionary", "class $N:\n    pass\n$n_k = $N()\n"
           "$n = weakref.WeakKeyDictionary({$n_k: $v})", "$n[$n_k]", "$n[$n_k] = $w"),
    Source("WeakSet", "class $N:\n    pass\n$n_k = $N()\n$n = weakref.WeakSet([$n_k])",
           "($v if len($n) else $w)", "del $n_k"),
    Source("proxy", "class $N:\n    pass\n$n_k = $N()\n$n_k.a = $v\n$n = weakref.proxy($n_k)",
           "$n.a", "$n_k.a = $w"),
    Source("Decimal context", "$n = decimal.Context(prec=$v)", "$n.prec", "$n.prec = $w", ("int",)),
    Source("re flags", "$n = [re.compile('a')]", "($v if $n[0].match('a') else $w)",
           "$n[0] = re.compile('b')"),
    # ---- Called from C ---------------------------------------------------------------------------
    Source("attrgetter", _OBJECT + "\n$n_g = operator.attrgetter('a')", "$n_g($n)", "$n.a = $w"),
    Source("itemgetter", "$n = {'a': $v}\n$n_g = operator.itemgetter('a')", "$n_g($n)",
           "$n['a'] = $w"),
    Source("methodcaller", "class $N:\n    a = $v\n    def get(self):\n        return self.a\n"
           "$n = $N()\n$n_g = operator.methodcaller('get')", "$n_g($n)", "$N.a = $w"),
    Source("map", "$n_k = $v\ndef $n(i):\n    return $n_k", "list(map($n, [0]))[0]", "$n_k = $w"),
    Source("reduce", "$n_k = $v\ndef $n(i, j):\n    return $n_k", "functools.reduce($n, [0, 1])",
           "$n_k = $w"),
    Source("sorted", "$n_k = 1\ndef $n(i):\n    return (i == 'a') * $n_k",
           "($v if sorted(['a', 'b'], key=$n)[0] == 'b' else $w)", "$n_k = -1"),
    Source("max", "class $N:\n    a = 1\n    def __lt__(self, other):\n        return $N.a > 0\n"
           "$n = [$N(), $N()]", "($v if sorted($n)[0] is $n[1] else $w)", "$N.a = -1"),
    Source("copy", _OBJECT, "copy.copy($n).a", "$n.a = $w"),
    Source("deepcopy", _OBJECT, "copy.deepcopy($n).a", "$n.a = $w"),
    Source("json", "$n = [json.dumps($v)]", "json.loads($n[0])", "$n[0] = json.dumps($w)"),
    Source("pickle", "$n = [pickle.dumps($v)]", "pickle.loads($n[0])", "$n[0] = pickle.dumps($w)"),
    Source("str.format", _OBJECT, "float('{0.a}'.format($n))", "$n.a = $w", ("float",)),
    Source("percent", _OBJECT, "float('%(a)s' % vars($n))", "$n.a = $w", ("float",)),
    # ---- Outside of Python's objects -------------------------------------------------------------
    Source("os.environ", "os.environ['TEST_$i'] = $v", "os.environ['TEST_$i']",
           "os.environ['TEST_$i'] = $w", ("str",), "os.environ.pop('TEST_$i', None)"),
    Source("os.getenv", "os.environ.pop('TEST_$i', None)", "os.getenv('TEST_$i', $v)",
           "os.environ['TEST_$i'] = $w", ("str",), "os.environ.pop('TEST_$i', None)"),
    Source("file", "$n = os.path.join(FOLDER, '$i')\nwith open($n, 'w') as file:\n"
           "    file.write($v)\ndef $n_f():\n    with open($n) as file:\n        return file.read()",
           "$n_f()", "with open($n, 'w') as file:\n    file.write($w)", ("str",)),
    Source("pathlib", "$n = pathlib.Path(FOLDER, '$i')\n$n.write_text($v)", "$n.read_text()",
           "$n.write_text($w)", ("str",)),
    Source("file exists", "$n = os.path.join(FOLDER, '$i')", "($w if os.path.exists($n) else $v)",
           "open($n, 'w').close()", undo="if os.path.exists($n):\n    os.unlink($n)"),
    Source("getcwd", "$n = os.getcwd()", "($v if os.getcwd() == $n else $w)", "os.chdir('/')",
           undo="os.chdir($n)"),
    Source("random", "$n = 0", "(0.5 + random.random())", types=("float",)),
    Source("random: object", "$n = random.Random(3)", "(0.5 + $n.random())", types=("float",)),
    Source("random: choice", "$n = random.Random(3)", "$n.choice([1, 1, 1, 1, 1, 2])",
           types=("int",)),
    Source("random of numpy", "$n = 0", "(0.5 + float(np.random.rand()))", types=("float",)),
    Source("random of numpy: generator", "$n = np.random.default_rng(3)", "(0.5 + $n.random())",
           types=("float",)),
    Source("random of torch, on the CPU", "$n = 0", "(0.5 + torch.rand(()).item())",
           types=("float",)),
    Source("uuid of a counter", "$n = itertools.count(1)", "(next($n) // 13 + 1)", types=("int",)),
    Source("contextvar", "$n = contextvars.ContextVar('$i', default=$v)", "$n.get()",
           "$n.set($w)"),
    Source("thread-local", "$n = threading.local()\n$n.a = $v", "$n.a", "$n.a = $w"),
    Source("thread-local: subclass", "class $N(threading.local):\n    a = $v\n$n = $N()", "$n.a",
           "$n.a = $w"),
    Source("event", "$n = threading.Event()", "($w if $n.is_set() else $v)", "$n.set()"),
    Source("lock", "$n = threading.Lock()", "($w if $n.locked() else $v)", "$n.acquire(blocking=False)"),
    Source("logging level", "$n = logging.getLogger(f'{__name__}.$i')\n$n.setLevel(10)",
           "($v if $n.isEnabledFor(15) else $w)", "$n.setLevel(20)"),
    Source("sys attribute", "sys.$i = $v", "sys.$i", "sys.$i = $w",
           undo="if hasattr(sys, '$i'):\n    del sys.$i"),
    Source("recursion limit", "$n = sys.getrecursionlimit()",
           "($v if sys.getrecursionlimit() == $n else $w)", "sys.setrecursionlimit($n + 7)",
           undo="sys.setrecursionlimit($n)"),
    Source("gc", "$n = 0", "($v if gc.isenabled() else $w)", "gc.disable()", undo="gc.enable()"),
    Source("warnings filter", "$n = 0",
           "($w if any(f[1] and f[1].pattern == 'test_$i' for f in warnings.filters) else $v)",
           "warnings.filterwarnings('ignore', 'test_$i')"),
    Source("number of threads", "$n = torch.get_num_threads()",
           "($v if torch.get_num_threads() == $n else $w)", "torch.set_num_threads($n + 1)",
           undo="torch.set_num_threads($n)"),
    Source("deterministic algorithms", "$n = 0",
           "($w if torch.are_deterministic_algorithms_enabled() else $v)",
           "torch.use_deterministic_algorithms(True, warn_only=True)",
           undo="torch.use_deterministic_algorithms(False)"),
    Source("default dtype", "$n = 0", "($v if torch.get_default_dtype() == torch.float64 else $w)",
           "torch.set_default_dtype(torch.float32)"),
    Source("initial seed", "$n = 0", "(1.0 + torch.initial_seed() % 2)", types=("float",)),
    Source("torch.backends", "$n = torch.backends.mkldnn.enabled",
           "($v if torch.backends.mkldnn.enabled == $n else $w)",
           "torch.backends.mkldnn.set_flags(not $n)", undo="torch.backends.mkldnn.set_flags($n)"),
    Source("another thread: thread-local", "class $N(threading.local):\n    def __init__(self):\n"
           "        self.a = $v if threading.current_thread() is threading.main_thread() else $w\n"
           "$n = $N()", "$n.a", "IN_THREAD = True"),
    Source("another thread: contextvar", "$n = contextvars.ContextVar('$i', default=$w)\n$n.set($v)",
           "$n.get()", "IN_THREAD = True"),
    Source("another thread: its name", "$n = 0",
           "($v if threading.current_thread().name == 'MainThread' else $w)", "IN_THREAD = True"),
    Source("another thread: attribute", "threading.current_thread().$i = $v",
           "getattr(threading.current_thread(), '$i', $w)", "IN_THREAD = True"),
    Source("decimal precision", "$n = decimal.getcontext().prec",
           "float(decimal.Decimal(1) / decimal.Decimal(6) * 10)", "decimal.getcontext().prec = 1",
           ("float",), "decimal.getcontext().prec = $n"),
    Source("localtime", "$n = os.environ.pop('TZ', None)\nos.environ['TZ'] = 'UTC0'\ntime.tzset()",
           "(1.0 + time.localtime(7200 * 5).tm_hour / 10)",
           "os.environ['TZ'] = 'UTC+3'\ntime.tzset()", ("float",),
           "del os.environ['TZ']\ntime.tzset()"),
    Source("timezone", "os.environ['TZ'] = 'UTC0'\ntime.tzset()",
           "(1.0 + time.timezone / 7200)", "os.environ['TZ'] = 'UTC+3'\ntime.tzset()", ("float",),
           "del os.environ['TZ']\ntime.tzset()"),
    Source("getrlimit", "import resource\n$n = resource.getrlimit(7)",
           "($v if __import__('resource').getrlimit(7) == $n else $w)",
           "import resource\nresource.setrlimit(7, ($n[0] - 1, $n[1]))",
           undo="import resource\nresource.setrlimit(7, $n)"),
    Source("default timeout", "import socket", "($v if __import__('socket').getdefaulttimeout() is None else $w)",
           "import socket\nsocket.setdefaulttimeout(5)", undo="import socket\nsocket.setdefaulttimeout(None)"),
    Source("switch interval", "$n = sys.getswitchinterval()",
           "($v if sys.getswitchinterval() == $n else $w)", "sys.setswitchinterval($n * 2)",
           undo="sys.setswitchinterval($n)"),
    Source("getrefcount", "$n = object()", "($v if sys.getrefcount($n) < 99 else $w)",
           "refs = [$n] * 99"),
    Source("getsizeof", "$n = []", "($v if sys.getsizeof($n) < 99 else $w)", "$n.extend(range(99))"),
    Source("dir", _OBJECT, "($v if 'q' not in dir($n) else $w)", "$n.q = 1"),
    Source("__instancecheck__", "class $N_m(type):\n    yes = True\n"
           "    def __instancecheck__(cls, item):\n        return $N_m.yes\n"
           "class $N(metaclass=$N_m):\n    pass", "($v if isinstance(3, $N) else $w)",
           "$N_m.yes = False"),
    Source("__rmul__", "class $N:\n    k = $v\n    def __rmul__(self, x):\n        return x * self.k\n"
           "$n = $N()", "$n", "$N.k = $w", ("object",)),
    Source("__torch_function__", "class $N:\n    k = $v\n    @classmethod\n"
           "    def __torch_function__(cls, f, types, args=(), kwargs=None):\n"
           "        return args[0] * cls.k\n$n = $N()", "$n", "$N.k = $w", ("object",)),
    Source("__hash__", "class $N:\n    k = 1\n    def __hash__(self):\n        return self.k\n$n = $N()",
           "($v if hash($n) == 1 else $w)", "$n.k = 2"),
    Source("ScriptModule", "class $N(nn.Module):\n    k: float\n    def __init__(self):\n"
           "        super().__init__()\n        self.k = $v\n    def forward(self, x):\n"
           "        return x * self.k\n$n = torch.jit.script($N())", "$n.k", "$n.k = $w", ("float",)),
    Source("ScriptModule: called", "class $N(nn.Module):\n    k: float\n    def __init__(self):\n"
           "        super().__init__()\n        self.k = $v\n    def forward(self, x):\n"
           "        return x * self.k\n$n = torch.jit.script($N())", "$n(torch.ones(6, device=DEVICE))",
           "$n.k = $w", ("tensor",)),
    # ---- numpy -----------------------------------------------------------------------------------
    Source("ndarray: item", "$n = np.array([$v, 0.0])", "float($n[0])", "$n[0] = $w", ("float",)),
    Source("ndarray: tolist", "$n = np.array([$v, 0.0])", "$n.tolist()[0]", "$n[0] = $w",
           ("float",)),
    Source("ndarray: max", "$n = np.array([$v, 0.0])", "float($n.max())", "$n[0] = $w", ("float",)),
    Source("ndarray: sum by numpy", "$n = np.array([$v, 0.0])", "float(np.sum($n))", "$n += $w",
           ("float",)),
    Source("ndarray: length", "$n = np.zeros($v)", "len($n)", "$n = np.zeros($w)", ("int",)),
    Source("ndarray: shape", "$n = np.zeros($v)", "$n.shape[0]", "$n.resize($w, refcheck=False)",
           ("int",)),
    Source("ndarray: view", "$n_k = np.array([0.0, $v])\n$n = $n_k[1:]", "float($n[0])",
           "$n_k[1] = $w", ("float",)),
    Source("ndarray: in an object", "class $N:\n    pass\n$n = $N()\n$n.a = np.array([$v])",
           "$n.a.item()", "$n.a[:] = $w", ("float",)),
    Source("ndarray: to a tensor", "$n = np.full(6, $v)",
           "torch.from_numpy($n).to(DEVICE)", "$n[:] = $w", ("tensor",)),
    Source("ndarray: as_tensor", "$n = np.full(6, $v)",
           "torch.as_tensor($n, device=DEVICE)", "$n[:] = $w", ("tensor",)),
    Source("ndarray: splits", "$n = np.array($v)", "$n.tolist()", "$n[:] = $w", ("splits",)),
    Source("numpy scalar", "$n = [np.float64($v)]", "$n[0]", "$n[0] = np.float64($w)", ("float",)),
    # ---- Plain tensors ---------------------------------------------------------------------------
    Source("plain tensor: item", "$n = torch.tensor([$v, 0.0])", "$n[0].item()", "$n[0] = $w",
           ("float",)),
    Source("plain tensor: item, no index", "$n = torch.tensor($v)", "$n.item()", "$n.fill_($w)",
           ("float",)),
    Source("plain tensor: float()", "$n = torch.tensor($v)", "float($n)", "$n.copy_(torch.tensor($w))",
           ("float",)),
    Source("plain tensor: int()", "$n = torch.tensor($v)", "int($n)", "$n.add_($w - $v)", ("int",)),
    Source("plain tensor: bool()", "$n = torch.tensor($v)", "bool($n)", "$n.logical_not_()",
           ("bool",)),
    Source("plain tensor: if", "$n = torch.tensor([1.0])", "($v if $n > 0 else $w)", "$n.neg_()"),
    Source("plain tensor: __index__", "$n = torch.tensor($v)", "operator.index($n)", "$n.fill_($w)",
           ("int",)),
    Source("plain tensor: tolist", "$n = torch.tensor([$v])", "$n.tolist()[0]", "$n[0] = $w",
           ("float", "int")),
    Source("plain tensor: numpy", "$n = torch.tensor([$v])", "float($n.numpy()[0])", "$n[0] = $w",
           ("float",)),
    Source("plain tensor: np.asarray", "$n = torch.tensor([$v])", "float(np.asarray($n)[0])",
           "$n[0] = $w", ("float",)),
    Source("plain tensor: detached numpy", "$n = torch.tensor([$v], requires_grad=True)",
           "float($n.detach().numpy()[0])", "$n.data[0] = $w", ("float",)),
    Source("plain tensor: changed by numpy", "$n_k = np.array([$v])\n$n = torch.from_numpy($n_k)",
           "$n.tolist()[0]", "$n_k[0] = $w", ("float",)),
    Source("plain tensor: .data", "$n = torch.tensor([$v])", "$n[0].item()",
           "$n.data = torch.tensor([$w])", ("float",)),
    Source("plain tensor: replaced", "$n = torch.tensor([$v])", "$n.tolist()[0]",
           "$n = torch.tensor([$w])", ("float",)),
    Source("plain tensor: length", "$n = torch.zeros($v)", "len($n)", "$n.resize_($w).zero_()", ("int",)),
    Source("plain tensor: shape", "$n = torch.zeros($v)", "$n.shape[0]", "$n.resize_($w).zero_()",
           ("int",)),
    Source("plain tensor: stride", "$n = torch.zeros(2, 3)", "$n.stride()[0]", "$n.t_()",
           ("int_free",)),
    Source("plain tensor: iterated", "$n = torch.tensor([$v])", "[float(k) for k in $n][0]",
           "$n[0] = $w", ("float",)),
    Source("plain tensor: format", "$n = torch.tensor($v)", "float(f'{$n:.3f}')", "$n.fill_($w)",
           ("float",)),
    Source("plain tensor: repr", "$n = torch.tensor($v)", "float(str($n)[7:-1])", "$n.fill_($w)",
           ("float",)),
    Source("plain tensor: equal", "$n = torch.tensor([1.0])",
           "($v if torch.equal($n, torch.ones(1)) else $w)", "$n.neg_()"),
    Source("plain tensor: sum", "$n = torch.tensor([$v, 0.0])", "$n.sum().item()", "$n[0] = $w",
           ("float",)),
    Source("plain tensor: sum, float()", "$n = torch.tensor([$v, 0.0])", "float($n.sum())",
           "$n[0] = $w", ("float",)),
    Source("plain tensor: requires_grad", "$n = torch.zeros(1)",
           "($w if $n.requires_grad else $v)", "$n.requires_grad_()"),
    Source("plain tensor: grad", "$n = torch.zeros(1, requires_grad=True)",
           "($w if $n.grad is not None else $v)", "$n.grad = torch.ones(1)"),
    Source("plain tensor: version", "$n = torch.zeros(1)", "($v if $n._version == 0 else $w)",
           "$n.add_(1)"),
    Source("plain tensor: attribute", "$n = torch.zeros(1)\n$n.a = $v", "$n.a", "$n.a = $w"),
    Source("plain tensor: moved", "$n = torch.full((6,), $v)", "$n.to(DEVICE)", "$n.fill_($w)",
           ("tensor",)),
    Source("plain tensor: splits", "$n = torch.tensor($v)", "$n.tolist()",
           "$n.copy_(torch.tensor($w))", ("splits",)),
    Source("plain tensor: data_ptr read", "$n = torch.tensor([$v])",
           "ctypes.c_double.from_address($n.data_ptr()).value", "$n[0] = $w", ("float",)),
    Source("plain tensor: buffer", "class $N(nn.Module):\n    def __init__(self):\n"
           "        super().__init__()\n        self.register_buffer('a', torch.tensor($v))\n$n = $N()",
           "$n.a.item()", "$n.a.fill_($w)", ("float",)),
    Source("storage", "$n = torch.tensor([$v]).untyped_storage()", "$n[7] / 64", "$n[7] = 80",
           ("storage",)),
    # ---- Tensors on the device -------------------------------------------------------------------
    Source("tensor: attribute", "$n = torch.zeros(1, device=DEVICE)\n$n.a = $v", "$n.a",
           "$n.a = $w"),
    Source("tensor: in place", "$n = torch.full((6,), $v, device=DEVICE)", "$n", "$n.fill_($w)",
           ("tensor",)),
    Source("tensor: replaced", "$n = torch.full((6,), $v, device=DEVICE)", "$n",
           "$n = torch.full((6,), $w, device=DEVICE)", ("tensor",)),
    Source("tensor: .data", "$n = torch.full((6,), $v, device=DEVICE)", "$n",
           "$n.data = torch.full((6,), $w, device=DEVICE)", ("tensor",)),
    Source("tensor: tangent", "$n = torch.ones(6, device=DEVICE)", "$n",
           "import torch.autograd.forward_ad as forward_ad\nif forward_ad._current_level < 0:\n    forward_ad.enter_dual_level()\n"
           "$n = forward_ad.make_dual($n, torch.ones(6, device=DEVICE))", ("tensor",),
           "if forward_ad._current_level >= 0:\n    forward_ad.exit_dual_level()"),
    Source("tensor: tangent in place", "$n = torch.ones(6, device=DEVICE)", "$n",
           "import torch.autograd.forward_ad as forward_ad\nif forward_ad._current_level < 0:\n    forward_ad.enter_dual_level()\n"
           "$n.copy_(forward_ad.make_dual($n.clone(), torch.ones(6, device=DEVICE)))", ("tensor",),
           "if forward_ad._current_level >= 0:\n    forward_ad.exit_dual_level()"),
    Source("tensor: other size", "$n = torch.full((6,), $v, device=DEVICE)", "$n",
           "$n = torch.full((1,), $w, device=DEVICE)", ("tensor",)),
    Source("tensor: other dtype", "$n = torch.full((6,), $v, device=DEVICE)", "$n",
           "$n = torch.full((6,), $w, device=DEVICE, dtype=torch.float32)", ("tensor",)),
    Source("tensor: through a view", "$n_k = torch.full((12,), $v, device=DEVICE)\n$n = $n_k[3:9]",
           "$n", "$n_k.mul_($w)", ("tensor",)),
    Source("tensor: in a set", "$n = {torch.full((6,), $v, device=DEVICE)}", "next(iter($n))",
           "next(iter($n)).fill_($w)", ("tensor",)),
    Source("tensor: in slots", "class $N:\n    __slots__ = ('a',)\n$n = $N()\n"
           "$n.a = torch.full((6,), $v, device=DEVICE)", "$n.a",
           "$n.a = torch.full((6,), $w, device=DEVICE)", ("tensor",)),
    Source("tensor: class attribute", "class $N:\n    a = torch.full((6,), $v, device=DEVICE)",
           "$N.a", "$N.a = torch.full((6,), $w, device=DEVICE)", ("tensor",)),
    Source("tensor: in a deque", "$n = collections.deque([torch.full((6,), $v, device=DEVICE)])",
           "$n[0]", "$n.append(torch.full((6,), $w, device=DEVICE))\n$n.popleft()", ("tensor",)),
    Source("tensor: requires_grad", "$n = torch.zeros(1, device=DEVICE)",
           "($w if $n.requires_grad else $v)", "$n.requires_grad_()"),
    Source("tensor: shape", "$n = torch.zeros($v, device=DEVICE)", "$n.shape[0]",
           "$n.resize_($w)", ("int",)),
    Source("tensor: number of", "$n = [torch.ones(6, device=DEVICE)]", "sum($n)",
           "$n.append($n[0])", ("tensor",)),
    # ---- Changed by the function itself ----------------------------------------------------------
    Source("counts: global", "$n_k = 0\ndef $n():\n    global $n_k\n    $n_k += 1\n"
           "    return 1.0 + $n_k // 13", "$n()", types=("float",)),
    Source("counts: attribute", "class $N:\n    k = 0\n    def get(self):\n        self.k += 1\n"
           "        return 1 + self.k // 13\n$n = $N()", "$n.get()", types=("int",)),
    Source("counts: class attribute", "class $N:\n    k = 0\n    @classmethod\n    def get(cls):\n"
           "        cls.k += 1\n        return 1 + cls.k // 13", "$N.get()", types=("int",)),
    Source("counts: slots", "class $N:\n    __slots__ = ('k',)\n    def get(self):\n"
           "        self.k += 1\n        return 1 + self.k // 13\n$n = $N()\n$n.k = 0", "$n.get()",
           types=("int",)),
    Source("counts: closure", "def $n_make():\n    k = 0\n    def get():\n        nonlocal k\n"
           "        k += 1\n        return 1 + k // 13\n    return get\n$n = $n_make()", "$n()",
           types=("int",)),
    Source("counts: list", "$n_k = []\ndef $n():\n    $n_k.append(0)\n    return 1 + len($n_k) // 13",
           "$n()", types=("int",)),
    Source("counts: dict", "$n_k = {'a': 0}\ndef $n():\n    $n_k['a'] += 1\n"
           "    return 1 + $n_k['a'] // 13", "$n()", types=("int",)),
    Source("counts: set", "$n_k = set()\ndef $n():\n    $n_k.add(len($n_k))\n"
           "    return 1 + len($n_k) // 13", "$n()", types=("int",)),
    Source("counts: deque", "$n_k = collections.deque([1] * 13 + [2] * 13)\ndef $n():\n"
           "    $n_k.rotate(-1)\n    return $n_k[-1]", "$n()", types=("int",)),
    Source("counts: Counter", "$n_k = collections.Counter()\ndef $n():\n    $n_k.update('a')\n"
           "    return 1 + $n_k['a'] // 13", "$n()", types=("int",)),
    Source("counts: function attribute", "def $n():\n    $n.k += 1\n    return 1 + $n.k // 13\n"
           "$n.k = 0", "$n()", types=("int",)),
    Source("counts: mutable default", "def $n(k=[0]):\n    k[0] += 1\n    return 1 + k[0] // 13",
           "$n()", types=("int",)),
    Source("counts: ndarray", "$n_k = np.zeros(1)\ndef $n():\n    $n_k[0] += 1\n"
           "    return 1 + int($n_k[0]) // 13", "$n()", types=("int",)),
    Source("counts: plain tensor", "$n_k = torch.zeros(1)\ndef $n():\n    $n_k.add_(1)\n"
           "    return 1 + int($n_k) // 13", "$n()", types=("int",)),
    Source("counts: plain tensor, unread", "$n_k = torch.zeros(1)\ndef $n():\n    $n_k.add_(1)\n"
           "    return 1.5", "$n()", types=("float",)),
    Source("counts: contextvar", "$n_k = contextvars.ContextVar('$i', default=0)\ndef $n():\n"
           "    $n_k.set($n_k.get() + 1)\n    return 1 + $n_k.get() // 13", "$n()", types=("int",)),
    Source("counts: thread-local", "$n_k = threading.local()\n$n_k.a = 0\ndef $n():\n"
           "    $n_k.a += 1\n    return 1 + $n_k.a // 13", "$n()", types=("int",)),
    Source("counts: os.environ", "os.environ['TEST_$i'] = '0'\ndef $n():\n"
           "    os.environ['TEST_$i'] = str(int(os.environ['TEST_$i']) + 1)\n"
           "    return 1 + int(os.environ['TEST_$i']) // 13", "$n()", types=("int",),
           undo="os.environ.pop('TEST_$i', None)"),
    Source("counts: queue", "$n_k = queue.Queue()\ndef $n():\n    $n_k.put(1)\n"
           "    return 1 + $n_k.qsize() // 13", "$n()", types=("int",)),
    Source("counts: file", "$n_k = os.path.join(FOLDER, '$i')\nopen($n_k, 'w').close()\ndef $n():\n"
           "    with open($n_k, 'a') as file:\n        file.write('a')\n"
           "    return 1 + os.path.getsize($n_k) // 13", "$n()", types=("int",)),
    Source("counts: StringIO", "$n_k = io.StringIO()\ndef $n():\n    print('a', file=$n_k)\n"
           "    return 1 + len($n_k.getvalue()) // 26", "$n()", types=("int",)),
    Source("counts: bytearray", "$n_k = bytearray()\ndef $n():\n    $n_k.append(1)\n"
           "    return 1 + len($n_k) // 13", "$n()", types=("int",)),
    Source("counts: lru_cache", "@functools.lru_cache\ndef $n_k():\n    return 1\ndef $n():\n"
           "    $n_k()\n    return 1 + $n_k.cache_info().hits // 13", "$n()", types=("int",)),
    Source("counts: logging", "class $N(logging.Handler):\n    def emit(self, record):\n"
           "        $n_k.append(1)\n$n_k = []\n$n_l = logging.getLogger(f'{__name__}.$i')\n"
           "$n_l.setLevel(10)\n$n_l.addHandler($N())\n$n_l.propagate = False\ndef $n():\n"
           "    $n_l.info('a')\n    return 1 + len($n_k) // 13", "$n()", types=("int",)),
    Source("counts: appends only", "$n_k = []\ndef $n():\n    $n_k.append(1)\n    return 1.5", "$n()",
           types=("float",)),
    Source("counts: sets the same", "$n_k = {}\ndef $n():\n    $n_k['a'] = 1.5\n"
           "    return $n_k['a']", "$n()", types=("float",)),
    Source("counts: setattr", "class $N:\n    pass\n$n_o = $N()\n$n_o.k = 0\ndef $n():\n"
           "    setattr($n_o, 'k', getattr($n_o, 'k') + 1)\n    return 1 + $n_o.k // 13", "$n()",
           types=("int",)),
    Source("counts: __dict__", "class $N:\n    pass\n$n_o = $N()\n$n_o.k = 0\ndef $n():\n"
           "    $n_o.__dict__.update(k=$n_o.k + 1)\n    return 1 + $n_o.k // 13", "$n()",
           types=("int",)),
    Source("counts: class made", "class $N_b:\n    made = []\n    def __init_subclass__(cls):\n"
           "        $N_b.made.append(1)\ndef $n():\n    class $N($N_b):\n        pass\n"
           "    return 1 + len($N_b.made) // 13", "$n()", types=("int",)),
    Source("counts: objects", "class $N:\n    made = 0\n    def __init__(self):\n"
           "        $N.made += 1\ndef $n():\n    $N()\n    return 1 + $N.made // 13", "$n()",
           types=("int",)),
    Source("counts: __del__", "class $N:\n    gone = 0\n    def __del__(self):\n"
           "        $N.gone += 1\ndef $n():\n    $N()\n    return 1 + $N.gone // 13", "$n()",
           types=("int",)),
    Source("counts: a global of tensors", "$n_k = []\ndef $n():\n    $n_k.append(torch.ones(1))\n"
           "    return 1 + len($n_k) // 13", "$n()", types=("int",)),
    Source("counts: global swaps", "$n_k = (1, 2)\ndef $n():\n    global $n_k\n"
           "    $n_k = $n_k[::-1]\n    return $n_k[0]", "$n()", types=("int",)),
    Source("counts: restores", "$n_k = 1.5\ndef $n():\n    global $n_k\n    old, $n_k = $n_k, 9\n"
           "    $n_k = old\n    return $n_k", "$n()", "$n_k = 2.5", types=("float",)),
    Source("iterator: count", "$n = itertools.count(1)", "(next($n) // 13 + 1)", types=("int",)),
    Source("iterator: cycle", "$n = itertools.cycle([1.5] * 7 + [2.5])", "next($n)",
           types=("float",)),
    Source("iterator: cycle of two", "$n = itertools.cycle([1.5, 2.5])", "next($n)",
           types=("float",)),
    Source("iterator: list", "$n = iter([1.5] * 11 + [2.5] * 5000)", "next($n)", types=("float",)),
    Source("iterator: generator", "def $n_g():\n    k = 0\n    while True:\n        k += 1\n"
           "        yield 1 + k // 13\n$n = $n_g()", "next($n)", types=("int",)),
    Source("iterator: send", "def $n_g():\n    k = 0\n    while True:\n        k += (yield 1 + k // 13)\n"
           "$n = $n_g()\nnext($n)", "$n.send(1)", types=("int",)),
    Source("iterator: for", "$n = iter([1.5] * 11 + [2.5] * 5000)\ndef $n_f():\n    for k in $n:\n"
           "        return k", "$n_f()", types=("float",)),
    Source("iterator: unpacked", "$n = iter([1.5] * 22 + [2.5] * 9000)\ndef $n_f():\n"
           "    a, b = itertools.islice($n, 2)\n    return a", "$n_f()", types=("float",)),
    Source("iterator: zip", "$n = zip(itertools.chain([1.5] * 11, itertools.repeat(2.5)), itertools.count())",
           "next($n)[0]", types=("float",)),
    Source("iterator: map", "$n = map(lambda k: 1 + k // 13, itertools.count())", "next($n)",
           types=("int",)),
    Source("iterator: enumerate", "$n = enumerate(itertools.repeat(0))", "(next($n)[0] // 13 + 1)",
           types=("int",)),
    Source("iterator: file", "$n_k = os.path.join(FOLDER, '$i')\nwith open($n_k, 'w') as file:\n"
           "    file.write('1\\n' * 13 + '2\\n' * 5000)\n$n = open($n_k)", "int(next($n))",
           types=("int",), undo="$n.close()"),
    Source("iterator: __next__", "class $N:\n    k = 0\n    def __next__(self):\n        self.k += 1\n"
           "        return 1 + self.k // 13\n$n = $N()", "next($n)", types=("int",)),
    Source("iterator: deque popped", "$n = collections.deque([1.5] * 11 + [2.5] * 5000)",
           "$n.popleft()", types=("float",)),
    Source("iterator: list popped", "$n = [2.5] * 5000 + [1.5] * 11", "$n.pop()", types=("float",)),
    Source("iterator: dict popped", "$n = {i: 1 + i // 13 for i in range(5000)}",
           "$n.pop(next(iter($n)))", types=("int",)),
    Source("counts: warnings", "$n_k = []\nwarnings.simplefilter('always')\n"
           "warnings.showwarning = lambda text, *a, **k: $n_k.extend('a' * (str(text) == 'a'))\n"
           "def $n():\n"
           "    warnings.warn('a')\n    return 1 + len($n_k) // 13", "$n()", types=("int",)),
    Source("counts: print", "$n_k = []\nclass $N:\n    def write(self, text):\n"
           "        $n_k.append(text)\n    def flush(self):\n        pass\n$n_o = $N()\ndef $n():\n"
           "    with contextlib.redirect_stdout($n_o):\n        print('a')\n"
           "    return 1 + len($n_k) // 26", "$n()", types=("int",)),
    # ---- Kept by the function --------------------------------------------------------------------
    Source("keeps: all results", "$n = []", "$n.append(x.detach())", types=("statement",)),
    Source("keeps: all sums", "$n = []", "$n.append(x.detach().sum())", types=("statement",)),
    Source("keeps: the last in a dict", "$n = {}", "$n['last'] = x.detach()", types=("statement",)),
    Source("keeps: the last in a list", "$n = [0]", "$n[0] = x.detach() * 2", types=("statement",)),
    Source("keeps: the last in an attribute", "class $N:\n    pass\n$n = $N()",
           "$n.last = x.detach().mean(0)", types=("statement",)),
    Source("keeps: the last in slots", "class $N:\n    __slots__ = ('last',)\n$n = $N()",
           "$n.last = x.detach().mean(0)", types=("statement",)),
    Source("keeps: the last in a class", "class $N:\n    last = None", "$N.last = x.detach().mean(0)",
           types=("statement",)),
    Source("keeps: the last in a set", "$n = set()", "$n.add(x.detach())", types=("statement",)),
    Source("keeps: the last in a deque", "$n = collections.deque(maxlen=2)",
           "$n.append(x.detach().mean())", types=("statement",)),
    Source("keeps: the last in a closure", "def $n_make():\n    last = None\n    def put(x):\n"
           "        nonlocal last\n        last = x\n    return put\n$n = $n_make()",
           "$n(x.detach().mean(0))", types=("statement",)),
    Source("keeps: the last in a buffer", "$n = nn.Module()\n$n.register_buffer('last', torch.zeros(6))",
           "$n.last = x.detach().mean(0)", types=("statement",)),
    Source("keeps: a mean", "$n = torch.zeros(6, device=DEVICE)",
           "$n.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)", types=("statement",)),
    Source("keeps: a mean, replaced", "$n = [torch.zeros(6, device=DEVICE)]",
           "$n[0] = $n[0] * 0.9 + x.detach().mean(0)", types=("statement",)),
    Source("keeps: a mean of numbers", "$n = [0.0]", "$n[0] = $n[0] * 0.9 + x.detach().sum().item()",
           types=("statement",)),
    Source("keeps: a copy on the CPU", "$n = torch.zeros(6)", "$n.copy_(x.detach().mean(0))",
           types=("statement",)),
    Source("keeps: an array", "$n = np.zeros(6)", "$n[:] = x.detach().cpu().mean(0).numpy()",
           types=("statement",)),
    Source("keeps: in the argument", "$n = {}", "$a['last'] = x.detach().mean(0)",
           types=("statement",), argument="$n"),
    Source("keeps: in an argument's list", "$n = []", "$a.append(1)", types=("statement",),
           argument="$n"),
    Source("keeps: in an argument's tensor", "$n = torch.zeros(6, device=DEVICE)",
           "$a.add_(x.detach().mean(0))", types=("statement",), argument="$n"),
    Source("keeps: an attribute of a tensor", "$n = torch.zeros(6, device=DEVICE)",
           "$n.last = x.detach().mean(0)", types=("statement",)),
    Source("keeps: the same number", "$n = {}", "$n['size'] = x.shape[0]", types=("statement",)),
    # ---- Arguments -------------------------------------------------------------------------------
    Source("argument: number", "$n = $v", "$a", "$n = $w", argument="$n"),
    Source("argument: list", "$n = [$v]", "$a[0]", "$n[0] = $w", argument="$n"),
    Source("argument: dict", "$n = {'a': $v}", "$a['a']", "$n['a'] = $w", argument="$n"),
    Source("argument: tuple", "$n = ($v, 0)", "$a[0]", "$n = ($w, 0)", argument="$n"),
    Source("argument: object", _OBJECT, "$a.a", "$n.a = $w", argument="$n"),
    Source("argument: method", "class $N:\n    a = $v\n    def get(self):\n        return self.a\n"
           "$n = $N()", "$a()", "$N.a = $w", argument="$n.get"),
    Source("argument: function", "$n_k = $v\ndef $n():\n    return $n_k", "$a()", "$n_k = $w",
           argument="$n"),
    Source("argument: class", "class $N:\n    a = $v", "$a.a", "$N.a = $w", argument="$N"),
    Source("argument: module", "$n = $v\n$n_m = sys.modules[__name__]", "$a.$i", "$n = $w",
           argument="$n_m"),
    Source("argument: slots", "class $N:\n    __slots__ = ('a',)\n$n = $N()\n$n.a = $v", "$a.a",
           "$n.a = $w", argument="$n"),
    Source("argument: dataclass", "@dataclasses.dataclass\nclass $N:\n    a: object\n$n = $N($v)",
           "$a.a", "$n.a = $w", argument="$n"),
    Source("argument: namedtuple", "$N = collections.namedtuple('$N', 'a b')\n$n = $N($v, 0)",
           "$a.a", "$n = $n._replace(a=$w)", argument="$n"),
    Source("argument: set", "$n = {1}", "($v if $a else $w)", "$n.clear()", argument="$n"),
    Source("argument: deque", "$n = collections.deque([$v])", "$a[0]", "$n[0] = $w", argument="$n"),
    Source("argument: enum", "class $N(enum.Enum):\n    A = 1\n    B = 2\n$n = $N.A",
           "($v if $a.name == 'A' else $w)", "$n = $N.B", argument="$n"),
    Source("argument: iterator", "$n = itertools.count(1)", "(next($a) // 13 + 1)", types=("int",),
           argument="$n"),
    Source("argument: ndarray", "$n = np.array([$v])", "float($a[0])", "$n[0] = $w", ("float",),
           argument="$n"),
    Source("argument: ndarray, splits", "$n = np.array($v)", "$a.tolist()", "$n[:] = $w",
           ("splits",), argument="$n"),
    Source("argument: plain tensor, item", "$n = torch.tensor($v)", "$a.item()", "$n.fill_($w)",
           ("float",), argument="$n"),
    Source("argument: plain tensor, another", "$n = torch.tensor($v)", "$a.item()",
           "$n = torch.tensor($w)", ("float",), argument="$n"),
    Source("argument: plain tensor, tolist", "$n = torch.tensor([$v])", "$a.tolist()[0]",
           "$n = torch.tensor([$w])", ("float",), argument="$n"),
    Source("argument: plain tensor, numpy", "$n = torch.tensor([$v])", "float($a.numpy()[0])",
           "$n = torch.tensor([$w])", ("float",), argument="$n"),
    Source("argument: plain tensor, float()", "$n = torch.tensor([$v])", "float($a)",
           "$n[0] = $w", ("float",), argument="$n"),
    Source("argument: plain tensor, splits", "$n = torch.tensor($v)", "$a.tolist()",
           "$n = torch.tensor($w)", ("splits",), argument="$n"),
    Source("argument: plain tensor, moved", "$n = torch.full((6,), $v)", "$a.to(DEVICE)",
           "$n.fill_($w)", ("tensor",), argument="$n"),
    Source("argument: plain tensor in a dict", "$n = {'a': torch.tensor([$v])}",
           "$a['a'].tolist()[0]", "$n['a'][0] = $w", ("float",), argument="$n"),
    Source("argument: tensor", "$n = torch.full((6,), $v, device=DEVICE)", "$a", "$n.fill_($w)",
           ("tensor",), argument="$n"),
    Source("argument: tensor, attribute", "$n = torch.ones(6, device=DEVICE)\n$n.a = $v", "$a.a",
           "$n.a = $w", argument="$n"),
    Source("argument: tensor, shape", "$n = torch.ones($v, device=DEVICE)", "$a.shape[0]",
           "$n = torch.ones($w, device=DEVICE)", ("int",), argument="$n"),
    Source("argument: dataclass of a tensor", "@dataclasses.dataclass\nclass $N:\n    a: object\n"
           "$n = $N(torch.full((6,), $v, device=DEVICE))", "$a.a",
           "$n = $N(torch.full((6,), $w, device=DEVICE))", ("tensor",), argument="$n"),
    Source("argument: object of a tensor", "class $N:\n    pass\n$n = $N()\n"
           "$n.a = torch.full((6,), $v, device=DEVICE)", "$a.a",
           "$n.a = torch.full((6,), $w, device=DEVICE)", ("tensor",), argument="$n"),
    Source("argument: string", "$n = 'a'", "($v if $a == 'a' else $w)", "$n = 'b'", argument="$n"),
    Source("argument: storage of bytes", "$n = bytearray([$v])", "$a[0]", "$n[0] = $w", ("int",),
           argument="$n"),
    Source("argument: tensor, tangent", "$n = torch.ones(6, device=DEVICE)", "$a",
           "import torch.autograd.forward_ad as forward_ad\nif forward_ad._current_level < 0:\n    forward_ad.enter_dual_level()\n"
           "$n = forward_ad.make_dual($n, torch.ones(6, device=DEVICE))", ("tensor",),
           "if forward_ad._current_level >= 0:\n    forward_ad.exit_dual_level()", argument="$n"),
    Source("argument: partial", "$n = functools.partial(lambda b: b, b=$v)", "$a()",
           "$n.keywords['b'] = $w", argument="$n"),
]

# fmt: on
VALUES["tensor"] = VALUES["float"]
USES["tensor"] = ["x = x * $e", "x = x + $e", "x = torch.cat([x, $e * x]).view(2, -1, 6).sum(0)"]
VALUES["object"] = VALUES["float"]
USES["object"] = ["x = x * $e"]
VALUES["statement"] = [(0, 0)]
USES["statement"] = ["$e"]
VALUES["int_free"] = [(0, 0)]
USES["int_free"] = ["x = x * $e"]
VALUES["storage"] = [(1.5, 2.5)]
USES["storage"] = ["x = x * ($e + 1)"]

# How a function may come by an expression e: rows of kind, setup, and the expression that replaces
# e. Names of modules before names are written as needed.
# fmt: off
VALUE_LAYERS = [
    ("function", "def $n():\n    return $e", "$n()"),
    ("function", "def $n():\n    return $e", "$n()"),
    ("function: with a default", "def $n(a=None, *, b=1):\n    return $e", "$n()"),
    ("lambda", "$n = lambda: $e", "$n()"),
    ("method", "class $N:\n    def get(self):\n        return $e\n$n = $N()", "$n.get()"),
    ("staticmethod", "class $N:\n    @staticmethod\n    def get():\n        return $e", "$N.get()"),
    ("classmethod", "class $N:\n    @classmethod\n    def get(cls):\n        return $e", "$N.get()"),
    ("property", "class $N:\n    @property\n    def a(self):\n        return $e\n$n = $N()", "$n.a"),
    ("property: by getattr", "class $N:\n    @property\n    def a(self):\n        return $e\n$n = $N()",
     "getattr($n, 'a')"),
    ("__call__", "class $N:\n    def __call__(self):\n        return $e\n$n = $N()", "$n()"),
    ("__getattr__", "class $N:\n    def __getattr__(self, name):\n        return $e\n$n = $N()",
     "$n.a"),
    ("__getitem__", "class $N:\n    def __getitem__(self, i):\n        return $e\n$n = $N()", "$n[0]"),
    ("descriptor", "class $N_d:\n    def __get__(self, item, owner):\n        return $e\n"
     "class $N:\n    a = $N_d()\n$n = $N()", "$n.a"),
    ("super", "class $N_b:\n    def get(self):\n        return $e\nclass $N($N_b):\n"
     "    def get(self):\n        return super().get()\n$n = $N()", "$n.get()"),
    ("comprehension", "", "[$e for _ in range(1)][0]"),
    ("inner lambda", "", "(lambda: $e)()"),
    ("generator expression", "", "next($e for _ in range(1))"),
    ("inner function", "def $n():\n    def get():\n        return $e\n    return get()", "$n()"),
    ("generator", "def $n():\n    yield $e", "next($n())"),
    ("coroutine", "async def $n_c():\n    return $e\ndef $n():\n    try:\n        $n_c().send(None)\n"
     "    except StopIteration as stop:\n        return stop.value", "$n()"),
    ("partial", "def $n_f(a):\n    return $e\n$n = functools.partial($n_f, 1)", "$n()"),
    ("map", "def $n(a):\n    return $e", "list(map($n, [0]))[0]"),
    ("reduce", "def $n(a, b):\n    return $e", "functools.reduce($n, [0, 1])"),
    ("context manager", "@contextlib.contextmanager\ndef $n_c():\n    yield $e\ndef $n():\n"
     "    with $n_c() as k:\n        return k", "$n()"),
    ("lru_cache of size 0", "@functools.lru_cache(maxsize=0)\ndef $n():\n    return $e", "$n()"),
    ("wraps", "def $n_d(f):\n    @functools.wraps(f)\n    def inner(*a, **k):\n"
     "        return f(*a, **k)\n    return inner\n@$n_d\ndef $n():\n    return $e", "$n()"),
    ("in a dict", "$n = {'f': lambda: $e}", "$n['f']()"),
    ("in a tuple", "$n = (lambda: $e,)", "$n[0]()"),
    ("except", "def $n():\n    try:\n        raise KeyError(1)\n    except KeyError:\n        return $e",
     "$n()"),
    ("methodcaller", "class $N:\n    def get(self):\n        return $e\n$n = $N()",
     "operator.methodcaller('get')($n)"),
    ("attrgetter", "class $N:\n    @property\n    def a(self):\n        return $e\n$n = $N()",
     "operator.attrgetter('a')($n)"),
    ("ExitStack", "def $n():\n    out = []\n    with contextlib.ExitStack() as stack:\n"
     "        stack.callback(lambda: out.append($e))\n    return out[0]", "$n()"),
    ("exec", "def $n():\n    room = {}\n    exec('def f(g):\\n    return g()', room)\n"
     "    return room['f'](lambda: $e)", "$n()"),
    ("module method", "class $N(nn.Module):\n    def get(self):\n        return $e\n$n = $N()",
     "$n.get()"),
    ("class made in the call", "def $n():\n    class $N:\n        a = $e\n    return $N.a", "$n()"),
    ("a thread", "def $n():\n    out = []\n    t = threading.Thread(target=lambda: out.append($e))\n"
     "    t.start()\n    t.join()\n    return out[0]", "$n()"),
    ("a context", "def $n():\n    return $e", "contextvars.copy_context().run($n)"),
    ("weak method", "class $N:\n    def get(self):\n        return $e\n$n_o = $N()\n"
     "$n = weakref.WeakMethod($n_o.get)", "$n()()"),
    ("tree_map", "def $n(a):\n    return $e", "torch.utils._pytree.tree_map($n, [0])[0]"),
]

# Where a statement s that changes x may stand: kind, setup, statement.
STATEMENT_LAYERS = [
    ("function", "def $n(x):\n$s\n    return x", "x = $n(x)"),
    ("function: keywords", "def $n(*, x, k=1):\n$s\n    return x", "x = $n(x=x)"),
    ("forward", "class $N(nn.Module):\n    def forward(self, x):\n$$s\n        return x\n$n = $N()",
     "x = $n(x)"),
    ("forward", "class $N(nn.Module):\n    def forward(self, x):\n$$s\n        return x\n$n = $N()",
     "x = $n(x)"),
    ("forward: of a child", "class $N_c(nn.Module):\n    def forward(self, x):\n$$s\n        return x\n"
     "class $N(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
     "        self.child = $N_c()\n    def forward(self, x):\n        return self.child(x)\n$n = $N()",
     "x = $n(x)"),
    ("forward: in Sequential", "class $N(nn.Module):\n    def forward(self, x):\n$$s\n        return x\n"
     "$n = nn.Sequential(nn.Identity(), nn.Sequential($N(), nn.Identity()))", "x = $n(x)"),
    ("forward: on an object", "def $n_f(x):\n$s\n    return x\n$n = nn.Identity()\n$n.forward = $n_f",
     "x = $n(x)"),
    ("forward: ModuleDict", "class $N(nn.Module):\n    def forward(self, x):\n$$s\n        return x\n"
     "$n = nn.ModuleDict({'a': $N()})", "for m in $n.values():\n    x = m(x)"),
    ("method", "class $N:\n    def run(self, x):\n$$s\n        return x\n$n = $N()", "x = $n.run(x)"),
    ("__call__", "class $N:\n    def __call__(self, x):\n$$s\n        return x\n$n = $N()", "x = $n(x)"),
    ("closure", "def $n_make():\n    def run(x):\n$$s\n        return x\n    return run\n"
     "$n = $n_make()", "x = $n(x)"),
    ("reduce", "def $n(x, _):\n$s\n    return x", "x = functools.reduce($n, [0], x)"),
    ("tree_map", "def $n(x):\n$s\n    return x", "x = torch.utils._pytree.tree_map($n, {'a': x})['a']"),
    ("autograd.Function: forward", "class $N(torch.autograd.Function):\n    @staticmethod\n"
     "    def forward(ctx, x):\n        x = x.clone()\n$$s\n        return x\n    @staticmethod\n"
     "    def backward(ctx, x):\n        return x * 0.5", "x = $N.apply(x)"),
    ("autograd.Function: backward", "class $N(torch.autograd.Function):\n    @staticmethod\n"
     "    def forward(ctx, x):\n        return x * 1.0\n    @staticmethod\n"
     "    def backward(ctx, x):\n        x = x.clone()\n$$s\n        return x", "x = $N.apply(x)"),
    ("hook made in the call", "def $n(x):\n    x = x.clone()\n$s\n    return x",
     "x = x * 1.0\nif x.requires_grad:\n    x.register_hook($n)"),
    ("forward hook", "def $n_h(m, a, x):\n$s\n    return x\n$n = nn.Identity()\n"
     "$n.register_forward_hook($n_h)", "x = $n(x)"),
    ("no_grad", "", "with torch.no_grad():\n    k = x\nx = x.clone()\n$0s"),
    ("checkpoint", "def $n(x):\n$s\n    return x",
     "x = torch.utils.checkpoint.checkpoint($n, x, use_reentrant=False)"),
    ("parametrize", "class $N(nn.Module):\n    def forward(self, x):\n$$s\n        return x\n"
     "$n = nn.Linear(6, 6).to(DEVICE)\nnn.utils.parametrize.register_parametrization($n, 'weight', $N())",
     "x = $n(x)"),
    ("generator", "def $n(x):\n$s\n    yield x", "x = next($n(x))"),
    ("match", "def $n(x):\n    match 1:\n        case 1:\n            pass\n$s\n    return x", "x = $n(x)"),
]
# fmt: on
