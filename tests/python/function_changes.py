"""What can happen to a model and its optimizer between two calls of a step: rows for
function_generator.py. Code stands in a driver that knows the modules main, helper and inner, the
model's class Net and what of torch it needs; `setup` runs before the first call."""

# ruff: noqa: E501 (a row is easier to read than a broken one)

from typing import NamedTuple


class Change(NamedTuple):
    kind: str
    code: str
    setup: str = ""
    undo: str = ""
    needs: str = "model"
    """model: a step that trains or not; training; grads: one that accumulates gradients."""
    optimizer: str = ""
    """The optimizer that it is about; empty: any."""
    again: str = ""
    """What happens a few calls after it."""


# foreach is said: by default it depends on the device, and leaves other gradients behind.
OPTIMIZERS = {
    "sgd": "torch.optim.SGD($p, lr=0.05, foreach=False)",
    "momentum": "torch.optim.SGD($p, lr=0.05, momentum=0.9, weight_decay=0.01, foreach=False)",
    "nesterov": "torch.optim.SGD($p, lr=0.05, momentum=0.9, nesterov=True, foreach=False)",
    "adam": "torch.optim.Adam($p, lr=0.01, foreach=False)",
    "adamw": "torch.optim.AdamW($p, lr=0.01, weight_decay=0.1, foreach=True)",
    "rmsprop": "torch.optim.RMSprop($p, lr=0.01, foreach=True)",
    "adagrad": "torch.optim.Adagrad($p, lr=0.05, foreach=False)",
    "nadam": "torch.optim.NAdam($p, lr=0.01, foreach=False)",
    "foreach": "torch.optim.SGD($p, lr=0.05, momentum=0.9, foreach=True)",
}

# What an optimizer of the program's own makes of its learning rate before it updates p.
CUSTOM = {
    "lr": "rate = group['lr']",
    "min": "rate = min(group['lr'], 0.1)",
    "max": "rate = max(group['lr'], 0.03)",
    "branch": "rate = group['lr'] if group['lr'] < 0.1 else 0.02",
    "round": "rate = round(group['lr'], 2)",
    "half": "rate = group['lr'] * 0.5",
    "square": "rate = group['lr'] ** 2 * 10",
    "sqrt": "rate = math.sqrt(group['lr']) / 5",
    "decay": "rate = 1 - group['lr'] * group['weight_decay']\nrate = 0.05 * rate",
    "minus": "rate = 0.2 - group['lr']",
    "string": "rate = float(f\"{group['lr']:.2f}\")",
    "tensor": "rate = float(torch.tensor(group['lr']))",
    "attribute": "rate = group['lr'] * self.factor",
    "class attribute": "rate = group['lr'] * self.gain",
    "method": "rate = self.rate(group)",
    "counts": "self.t += 1\nrate = group['lr'] / (1 + self.t // 13)",
    "counts in the group": "group['t'] = group.get('t', 0) + 1\nrate = group['lr'] / (1 + group['t'] // 13)",
    "counts in the state": (
        "state = self.state[group['params'][0]]\nstate['t'] = state.get('t', 0) + 1\n"
        "rate = group['lr'] / (1 + state['t'] // 13)"
    ),
    "two groups' ": "rate = max(g['lr'] for g in self.param_groups)",
    "default": "rate = self.defaults['lr']",
    "clamped by a global": "rate = min(group['lr'], LIMIT)",
    "warm-up": "self.t += 1\nrate = group['lr'] * min(1.0, self.t / 30)",
}

_RATES = "for group in main.optimizer.param_groups:\n    group['lr'] = {}"

# fmt: off
CHANGES = [
    # ---- Modules ---------------------------------------------------------------------------------
    Change("eval", "main.model.eval()", again="main.model.train()"),
    Change("train", "main.model.train()", "main.model.eval()"),
    Change("eval of a child", "main.model.drop.eval()\nmain.model.norm.eval()"),
    Change("training set", "main.model.drop.training = False"),
    Change("dropout's p", "main.model.drop.p = 0.9"),
    Change("norm's eps", "main.model.norm.eps = 2.0"),
    Change("module attribute", "main.model.scale = 2.5"),
    Change("module attribute: in __dict__", "main.model.__dict__['scale'] = 2.5"),
    Change("module class attribute", "Net.gain = 2.5"),
    Change("module class attribute: Module's", "nn.Module.gain_of_all = 0.5",
           undo="del nn.Module.gain_of_all"),
    Change("module: option", "main.model.options['power'] = 3"),
    Change("module: list", "main.model.order.reverse()"),
    Change("module: forward replaced", "main.model.act.forward = lambda x: x * 0.1"),
    Change("module: class's forward replaced", "Net.forward = lambda self, x: x * 0.1 + self.second.bias"),
    Change("module: a child's class's forward replaced", "Act.forward = lambda self, x: x * 0.1"),
    Change("module: __call__ replaced", "Act.__call__ = lambda self, x: x * 0.1"),
    Change("module: torch's forward replaced",
           "nn.Linear.forward = lambda self, x: F.linear(x, self.weight)",
           "old = nn.Linear.forward", "nn.Linear.forward = old"),
    Change("module: method replaced", "Net.mix = lambda self, x: x * 0.1"),
    Change("module: method of an object replaced", "main.model.mix = lambda x: x * 0.1"),
    Change("module: property replaced", "Net.shift = property(lambda self: 0.75)"),
    Change("module: __class__", "main.model.__class__ = type('Other', (Net,), {'gain': 3.0})"),
    Change("function of F replaced", "F.softsign = torch.tanh", "old = F.softsign",
           "F.softsign = old"),
    Change("function of torch replaced", "torch.erf = torch.tanh", "old = torch.erf",
           "torch.erf = old"),
    Change("child replaced", "main.model.act = nn.Sigmoid()"),
    Change("child replaced: in _modules", "main.model._modules['act'] = nn.Sigmoid()"),
    Change("child replaced: with parameters",
           "main.model.second = nn.Linear(8, 6).to(DEVICE)\n"
           "nn.init.constant_(main.model.second.weight, 0.1)\nnn.init.zeros_(main.model.second.bias)"),
    Change("child added to Sequential", "main.model.tail.append(nn.Tanh())"),
    Change("child removed from Sequential", "del main.model.tail[-1]"),
    Change("model replaced", "main.model = copy.deepcopy(main.model)\nmain.model.scale = 0.5"),
    # ---- Parameters ------------------------------------------------------------------------------
    Change("parameter replaced",
           "main.model.first.weight = nn.Parameter(torch.full((8, 6), 0.2, device=DEVICE))"),
    Change("parameter: .data", "main.model.first.weight.data = torch.full((8, 6), 0.2, device=DEVICE)"),
    Change("parameter: in place", "with torch.no_grad():\n    main.model.first.weight.mul_(0.5)"),
    Change("parameter: .data in place", "main.model.second.weight.data.mul_(0.5)"),
    Change("parameter: row in place", "with torch.no_grad():\n    main.model.second.weight[1] = 0.5"),
    Change("parameter: init", "nn.init.constant_(main.model.first.weight, 0.2)"),
    Change("parameter: swapped", "a, b = main.model.first, main.model.third\n"
           "a.weight, b.weight = b.weight, a.weight"),
    Change("parameter: tied", "main.model.third.weight = main.model.first.weight"),
    Change("parameter: bias removed", "main.model.first.bias = None"),
    Change("parameter: requires_grad_", "main.model.first.weight.requires_grad_(False)"),
    Change("parameter: requires_grad_ of all", "main.model.second.requires_grad_(False)",
           again="main.model.second.requires_grad_(True)"),
    Change("parameter: from False", "main.model.first.weight.requires_grad_(True)",
           "main.model.first.weight.requires_grad_(False)"),
    Change("parameter: attribute", "main.model.first.weight.keep = 0.25",
           "main.model.first.weight.keep = 1.0"),
    Change("parameter: grad set", "for p in main.model.parameters():\n    p.grad = torch.ones_like(p)",
           needs="grads"),
    Change("parameter: grad None", "for p in main.model.parameters():\n    p.grad = None",
           needs="grads"),
    Change("parameter: grad in place",
           "for p in main.model.parameters():\n    if p.grad is not None:\n        p.grad.mul_(0.1)",
           needs="grads"),
    Change("load_state_dict", "main.model.load_state_dict(kept)",
           "kept = copy.deepcopy(main.model.state_dict())"),
    Change("load_state_dict: halved",
           "main.model.load_state_dict({k: v * 0.5 if v.is_floating_point() else v "
           "for k, v in main.model.state_dict().items()})"),
    Change("load_state_dict: assign",
           "main.model.load_state_dict({k: (v * 0.5).detach() if v.is_floating_point() else v "
           "for k, v in main.model.state_dict().items()}, assign=True)"),
    Change("buffer in place", "main.model.table.fill_(2.0)"),
    Change("buffer replaced", "main.model.table = torch.full((6,), 2.0, device=DEVICE)"),
    Change("buffer: running statistics", "main.model.norm.reset_parameters()"),
    Change("double and float", "main.model.float()\nmain.model.double()"),
    Change("parameter sum", "main.model.register_parameter('more', nn.Parameter("
           "torch.ones(6, device=DEVICE)))"),
    Change("parametrized",
           "nn.utils.parametrize.register_parametrization(main.model.first, 'weight', nn.Tanh())"),
    Change("weight_norm", "nn.utils.parametrizations.weight_norm(main.model.second)"),
    # ---- Hooks -----------------------------------------------------------------------------------
    Change("hook: forward", "main.model.act.register_forward_hook(lambda m, a, x: x * 0.5)"),
    Change("hook: forward, counts",
           "main.model.act.register_forward_hook(lambda m, a, x: main.SEEN.append(1))"),
    Change("hook: forward, at first", "handle.remove()",
           "handle = main.model.act.register_forward_hook(lambda m, a, x: x * 0.5)"),
    Change("hook: forward, at first, counts", "main.SEEN.append(2)",
           "main.model.act.register_forward_hook(lambda m, a, x: main.SEEN.append(1))"),
    Change("hook: forward pre", "main.model.second.register_forward_pre_hook(lambda m, a: (a[0] * 0.5,))"),
    Change("hook: backward", "main.model.second.register_full_backward_hook("
           "lambda m, i, o: tuple(None if g is None else g * 0.5 for g in i))", needs="training"),
    Change("hook: backward pre", "main.model.second.register_full_backward_pre_hook("
           "lambda m, o: tuple(g * 0.5 for g in o))", needs="training"),
    Change("hook: global forward",
           "handle = nn.modules.module.register_module_forward_hook("
           "lambda m, a, x: x * 0.5 if isinstance(m, Act) else None)",
           undo="handle.remove()"),
    Change("hook: global forward, at first", "main.SEEN.append(2)",
           "handle = nn.modules.module.register_module_forward_hook("
           "lambda m, a, x: main.SEEN.append(1))", undo="handle.remove()"),
    Change("hook: global forward, removed", "handle.remove()",
           "handle = nn.modules.module.register_module_forward_hook("
           "lambda m, a, x: x * 0.5 if isinstance(m, Act) else None)", undo="handle.remove()"),
    Change("hook: global forward pre",
           "handle = nn.modules.module.register_module_forward_pre_hook("
           "lambda m, a: (a[0] * 0.5,) if isinstance(m, Act) else None)", undo="handle.remove()"),
    Change("hook: global backward",
           "handle = nn.modules.module.register_module_full_backward_hook("
           "lambda m, i, o: tuple(None if g is None else g * 0.5 for g in i))",
           undo="handle.remove()", needs="training"),
    Change("hook: tensor", "main.model.first.weight.register_hook(lambda g: g * 0.1)",
           needs="training"),
    Change("hook: tensor, counts",
           "main.model.first.weight.register_hook(lambda g: main.SEEN.append(1))", needs="training"),
    Change("hook: tensor, at first", "handle.remove()",
           "handle = main.model.first.weight.register_hook(lambda g: g * 0.1)", needs="training"),
    Change("hook: post accumulate",
           "main.model.first.weight.register_post_accumulate_grad_hook("
           "lambda p: p.grad.mul_(0.1).__class__ and None)", needs="training"),
    Change("hook: post accumulate, counts",
           "main.model.second.bias.register_post_accumulate_grad_hook("
           "lambda p: main.SEEN.append(1))", needs="training"),
    Change("hook: post accumulate, at first", "main.SEEN.append(2)",
           "main.model.second.bias.register_post_accumulate_grad_hook("
           "lambda p: main.SEEN.append(1))", needs="training"),
    Change("hook: of AccumulateGrad",
           "node = main.model.first.weight.view_as(main.model.first.weight)"
           ".grad_fn.next_functions[0][0]\nnode.register_hook(lambda *a: main.SEEN.append(1))",
           needs="training"),
    Change("hook: of AccumulateGrad, pre",
           "node = main.model.first.weight.view_as(main.model.first.weight)"
           ".grad_fn.next_functions[0][0]\nnode.register_prehook(lambda g: (g[0] * 0.1,))",
           needs="training"),
    Change("hook: multi grad",
           "handle = torch.autograd.graph.register_multi_grad_hook("
           "[main.model.first.weight, main.model.second.weight], lambda g: main.SEEN.append(1))",
           undo="handle.remove()", needs="training"),
    Change("hook: saved tensors",
           "mode = torch.autograd.graph.saved_tensors_hooks("
           "lambda t: t * 0.5, lambda t: t)\nmode.__enter__()",
           undo="mode.__exit__(None, None, None)", needs="training"),
    Change("hook: state_dict", "main.model._register_state_dict_hook(lambda *a: None)"),
    # ---- Modes -----------------------------------------------------------------------------------
    Change("mode: TorchFunctionMode",
           "class Mode(torch.overrides.TorchFunctionMode):\n"
           "    def __torch_function__(self, f, types, args=(), kwargs=None):\n"
           "        if f is F.softsign:\n            return args[0] * 0.1\n"
           "        return f(*args, **(kwargs or {}))\nmode = Mode()\nmode.__enter__()",
           undo="mode.__exit__(None, None, None)"),
    Change("mode: TorchDispatchMode",
           "from torch.utils._python_dispatch import TorchDispatchMode\n"
           "class Mode(TorchDispatchMode):\n"
           "    def __torch_dispatch__(self, f, types, args=(), kwargs=None):\n"
           "        if f is torch.ops.aten.erf.default:\n            return args[0] * 0.1\n"
           "        return f(*args, **(kwargs or {}))\nmode = Mode()\nmode.__enter__()",
           undo="mode.__exit__(None, None, None)"),
    Change("mode: grad disabled", "torch.set_grad_enabled(False)",
           undo="torch.set_grad_enabled(True)", again="torch.set_grad_enabled(True)"),
    Change("mode: default device", "torch.set_default_device('meta')\ntorch.set_default_device(None)"),
    # ---- Optimizers ------------------------------------------------------------------------------
    Change("lr", _RATES.format("0.2"), needs="training", again=_RATES.format("0.02")),
    Change("lr: twice", _RATES.format("group['lr'] * 2"), needs="training",
           again=_RATES.format("group['lr'] * 3")),
    Change("lr: of one group", "main.optimizer.param_groups[-1]['lr'] = 0.2", needs="training",
           again="main.optimizer.param_groups[0]['lr'] = 0.1"),
    Change("lr: zero", _RATES.format("0.0"), needs="training", again=_RATES.format("0.05")),
    Change("lr: int", _RATES.format("1"), needs="training", again=_RATES.format("0")),
    Change("lr: tensor", _RATES.format("torch.tensor(0.2)"), needs="training"),
    Change("scheduler: StepLR", "", "schedule = torch.optim.lr_scheduler.StepLR("
           "main.optimizer, 9, 0.3)", needs="schedule"),
    Change("scheduler: ExponentialLR", "", "schedule = torch.optim.lr_scheduler.ExponentialLR("
           "main.optimizer, 0.97)", needs="schedule"),
    Change("scheduler: CosineAnnealingLR", "",
           "schedule = torch.optim.lr_scheduler.CosineAnnealingLR(main.optimizer, 20)",
           needs="schedule"),
    Change("scheduler: LambdaLR", "", "schedule = torch.optim.lr_scheduler.LambdaLR("
           "main.optimizer, lambda i: 1 / (1 + i))", needs="schedule"),
    Change("scheduler: OneCycleLR", "", "schedule = torch.optim.lr_scheduler.OneCycleLR("
           "main.optimizer, 0.1, total_steps=1300)", needs="schedule"),
    Change("group: weight_decay",
           "for g in main.optimizer.param_groups:\n    g['weight_decay'] = 0.5", needs="training"),
    Change("group: momentum", "for g in main.optimizer.param_groups:\n    g['momentum'] = 0.1",
           needs="training", optimizer="momentum"),
    Change("group: maximize", "for g in main.optimizer.param_groups:\n    g['maximize'] = True",
           needs="training", optimizer="momentum"),
    Change("group: nesterov", "for g in main.optimizer.param_groups:\n    g['nesterov'] = False",
           needs="training", optimizer="nesterov"),
    Change("group: betas", "for g in main.optimizer.param_groups:\n    g['betas'] = (0.1, 0.2)",
           needs="training", optimizer="adam"),
    Change("group: eps", "for g in main.optimizer.param_groups:\n    g['eps'] = 1.0",
           needs="training", optimizer="adam"),
    Change("group: amsgrad", "for g in main.optimizer.param_groups:\n    g['eps'] = 0.5",
           needs="training", optimizer="adamw"),
    Change("group: parameter removed", "main.optimizer.param_groups[0]['params'].pop()",
           needs="training"),
    Change("group: emptied", "main.optimizer.param_groups[0]['params'] = []", needs="training"),
    Change("group: added", "main.optimizer.add_param_group({'params': [main.spare], 'lr': 0.5})",
           needs="training"),
    Change("state cleared", "main.optimizer.state.clear()", needs="training", optimizer="momentum"),
    Change("state cleared: Adam", "main.optimizer.state.clear()", needs="training",
           optimizer="adam"),
    Change("state in place",
           "for s in main.optimizer.state.values():\n    s['momentum_buffer'].zero_()",
           needs="training", optimizer="momentum"),
    Change("state replaced",
           "for s in main.optimizer.state.values():\n"
           "    s['exp_avg'] = torch.ones_like(s['exp_avg'])", needs="training", optimizer="adam"),
    Change("state: step set",
           "for s in main.optimizer.state.values():\n    s['step'].fill_(1)",
           needs="training", optimizer="adam"),
    Change("optimizer: load_state_dict", "main.optimizer.load_state_dict(kept)",
           "kept = copy.deepcopy(main.optimizer.state_dict())", needs="training"),
    Change("optimizer: load_state_dict of now",
           "main.optimizer.load_state_dict(copy.deepcopy(main.optimizer.state_dict()))",
           needs="training"),
    Change("optimizer replaced", "main.optimizer = torch.optim.SGD(main.model.parameters(), lr=0.3, foreach=False)",
           needs="training"),
    Change("optimizer: step replaced on the object",
           "main.optimizer.step = lambda: main.SEEN.append(1)", needs="training"),
    Change("optimizer: class's step replaced",
           "type(main.optimizer).step = lambda self, closure=None: main.SEEN.append(1)",
           "kept = type(main.optimizer).step", "type(main.optimizer).step = kept",
           needs="training"),
    Change("optimizer: zero_grad replaced", "main.optimizer.zero_grad = lambda: None",
           needs="training"),
    Change("hook: step pre", "main.optimizer.register_step_pre_hook("
           "lambda *a: [p.grad.mul_(0.1) for p in main.model.parameters() if p.grad is not None]"
           " and None)", needs="training"),
    Change("hook: step pre, counts",
           "main.optimizer.register_step_pre_hook(lambda *a: main.SEEN.append(1))",
           needs="training"),
    Change("hook: step post, counts",
           "main.optimizer.register_step_post_hook(lambda *a: main.SEEN.append(1))",
           needs="training"),
    Change("hook: step post, at first", "main.SEEN.append(2)",
           "main.optimizer.register_step_post_hook(lambda *a: main.SEEN.append(1))",
           needs="training"),
    Change("hook: step pre, at first", "main.SEEN.append(2)",
           "main.optimizer.register_step_pre_hook(lambda *a: main.SEEN.append(1))",
           needs="training"),
    Change("hook: all optimizers' steps",
           "from torch.optim.optimizer import register_optimizer_step_post_hook as after\nfrom torch.optim.optimizer import register_optimizer_step_pre_hook as before\nhandle = after("
           "lambda *a: main.SEEN.append(1))", undo="handle.remove()", needs="training"),
    Change("hook: all optimizers' steps, at first", "main.SEEN.append(2)",
           "from torch.optim.optimizer import register_optimizer_step_post_hook as after\nfrom torch.optim.optimizer import register_optimizer_step_pre_hook as before\nhandle = before("
           "lambda *a: main.SEEN.append(1))", undo="handle.remove()", needs="training"),
    Change("custom: factor", "main.optimizer.factor = 0.2", needs="training",
           optimizer="custom attribute"),
    Change("custom: class attribute", "main.Custom.gain = 0.2", needs="training",
           optimizer="custom class attribute"),
    Change("custom: method", "main.Custom.rate = lambda self, group: 0.2", needs="training",
           optimizer="custom method"),
    Change("custom: global", "main.LIMIT = 0.01", needs="training",
           optimizer="custom clamped by a global"),
    Change("custom: defaults", "main.optimizer.defaults['lr'] = 0.2", needs="training",
           optimizer="custom default"),
    Change("clip's limit", "main.CLIP = 0.01", needs="training"),
    Change("loss function replaced", "main.loss_of = F.l1_loss", needs="training"),
]
CHANGES += [
    Change(f"custom: lr, {name}", _RATES.format("0.2"), needs="training",
           optimizer=f"custom {name}", again=_RATES.format("0.04"))
    for name in CUSTOM
]
CHANGES += [
    Change(f"lr, {name}", _RATES.format("group['lr'] * 2"), needs="training", optimizer=name,
           again=_RATES.format("group['lr'] / 4"))
    for name in OPTIMIZERS
]
# fmt: on
