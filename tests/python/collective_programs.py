"""Programs of two ranks over gloo. Each runs on the CPU and on lazy; the results must be equal.

collective_programs.py RANK FILE     prints {program: what went wrong, or ""} as JSON
"""

import json
import os
import sys
import traceback

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils import _pytree as pytree

# Compiled kernels round in another order.
EAGERS_BITS = os.environ.get("TORCH_LAZY_COMPILER") == "off"
TOLERANCE = {"rtol": 0, "atol": 0} if EAGERS_BITS else {"rtol": 1e-3, "atol": 1e-3}

PROGRAMS = {}


def program(function):
    PROGRAMS[function.__name__] = function
    return function


def data(device, *shape):
    """Other numbers on the other rank, and a value that is pending on lazy."""
    torch.manual_seed(dist.get_rank())
    return torch.randn(shape).to(device) * 2 + 1


def other():
    return 1 - dist.get_rank()


# ---- Each collective -----------------------------------------------------------------------------


@program
def all_reduce(device):
    x, y = data(device, 5), data(device, 3, 4)
    view = y[1:, ::2].contiguous()
    dist.all_reduce(x)
    dist.all_reduce(y[2], op=dist.ReduceOp.MAX)  # a part of a buffer
    dist.all_reduce(view, op=dist.ReduceOp.AVG)
    return x, y, view


@program
def reduce(device):
    x = data(device, 5)
    dist.reduce(x, 0)
    return x if dist.get_rank() == 0 else None


@program
def broadcast(device):
    x = data(device, 5)
    before = x * 3  # pending when x is overwritten
    dist.broadcast(x, 1)
    return x, before


@program
def all_gather(device):
    x = data(device, 2, 3)
    parts = [torch.zeros(2, 3, device=device) for _ in range(2)]
    dist.all_gather(parts, x)
    return parts, x


@program
def all_gather_into_tensor(device):
    whole = torch.zeros(4, 3, device=device)
    dist.all_gather_into_tensor(whole, data(device, 2, 3))
    return whole


@program
def all_gather_coalesced(device):
    lists = [[torch.zeros(2, device=device), torch.zeros(3, device=device)] for _ in range(2)]
    dist.all_gather_coalesced(lists, [data(device, 2), data(device, 3)])
    return lists


@program
def all_reduce_coalesced(device):
    x, y = data(device, 2), data(device, 3)
    dist.all_reduce_coalesced([x, y])
    return x, y


@program
def reduce_scatter(device):
    part = torch.zeros(3, device=device)
    dist.reduce_scatter(part, list(data(device, 2, 3)))
    return part


@program
def reduce_scatter_tensor(device):
    part = torch.zeros(3, device=device)
    dist.reduce_scatter_tensor(part, data(device, 6))
    return part


@program
def gather(device):
    parts = [torch.zeros(4, device=device) for _ in range(2)] if dist.get_rank() == 0 else None
    dist.gather(data(device, 4), parts, 0)
    return parts


@program
def scatter(device):
    part = torch.zeros(4, device=device)
    dist.scatter(part, list(data(device, 2, 4)) if dist.get_rank() == 1 else None, 1)
    return part


@program
def all_to_all(device):
    parts = [torch.zeros(3, device=device) for _ in range(2)]
    dist.all_to_all(parts, list(data(device, 2, 3)))
    return parts


@program
def all_to_all_single(device):
    sizes = [1, 3] if dist.get_rank() == 0 else [2, 1]
    received = [1, 2] if dist.get_rank() == 0 else [3, 1]
    whole = torch.zeros(sum(received), device=device)
    dist.all_to_all_single(whole, data(device, sum(sizes)), received, sizes)
    return whole


@program
def send_and_receive(device):
    x = data(device, 4)
    y = torch.zeros(4, device=device)
    if dist.get_rank() == 0:
        dist.send(x, 1)
        source = dist.recv(y)
    else:
        source = dist.recv(y, 0)
        dist.send(x, 0)
    return y, source


@program
def both_send_first(device):
    """gloo's sends end when they are received: waiting inside of isend would wait for ever."""
    x, y = data(device, 1000), torch.zeros(1000, device=device)
    sent = dist.isend(x, other())
    doubled = (x * 2).sum().item()  # what is being sent can be read
    received = dist.irecv(y, other())
    received.wait()
    sent.wait()
    return y, doubled


@program
def batch_of_sends(device):
    x, y = data(device, 4), torch.zeros(4, device=device)
    operations = [dist.P2POp(dist.isend, x, other()), dist.P2POp(dist.irecv, y, other())]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return y


@program
def barriers(device):
    dist.barrier()
    dist.monitored_barrier()
    return data(device, 1)


@program
def objects(device):
    gathered = [None, None]
    dist.all_gather_object(gathered, {"rank": dist.get_rank(), "x": data(device, 2)})
    sent = [data(device, 3)] if dist.get_rank() == 0 else [None]
    dist.broadcast_object_list(sent, 0)
    return [g["rank"] for g in gathered], [g["x"] for g in gathered], sent


@program
def functional_collectives(device):
    x = data(device, 4)
    group = dist.group.WORLD
    reduced = functional.all_reduce(x, "sum", group)
    gathered = functional.all_gather_tensor(x, 0, group)
    scattered = functional.reduce_scatter_tensor(x, "sum", 0, group)
    return reduced + 1, gathered * 1, scattered * 1, x


@program
def subgroup(device):
    x = data(device, 4)
    dist.all_reduce(x, group=dist.new_group([0, 1]))
    return x


# ---- Works that are not done yet -----------------------------------------------------------------

LARGE = 1 << 22  # gloo needs some milliseconds for it


@program
def read_after_waiting(device):
    x = data(device, LARGE)
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    y = x * 2
    return work.is_completed(), work.is_success(), y.sum(), x


@program
def read_without_waiting(device):
    """Eager would read what is half written, so there it waits."""
    x = data(device, LARGE)
    work = dist.all_reduce(x, async_op=True)
    if device == "cpu":
        work.wait()
    return x.sum(), x * 2


@program
def scheduled_without_waiting(device):
    x = data(device, LARGE)
    work = dist.broadcast(x, 0, async_op=True)
    if device == "cpu":
        work.wait()
    y = x + 1
    x.mul_(3)
    end_step(device)
    work.wait()
    return x, y


@program
def what_is_read_is_not_overwritten(device):
    """x is dead after y: a run may compute y in x's memory, but not while it is sent."""
    x = data(device, LARGE)
    parts = [torch.zeros(LARGE, device=device) for _ in range(2)]
    end_step(device)
    work = dist.all_gather(parts, x, async_op=True)
    y = x.mul(2).add(1)
    del x
    end_step(device)
    work.wait()
    return parts, y


@program
def future(device):
    x = data(device, 100)
    work = dist.all_reduce(x, async_op=True)
    seen = work.get_future().then(lambda done: done.value()[0] * 2).wait()
    assert seen.device.type == device
    parts = [torch.zeros(100, device=device) for _ in range(2)]
    gathered = dist.all_gather(parts, x, async_op=True).get_future()
    gathered.wait()
    return seen, x, parts


@program
def callback_that_reads(device):
    """It runs on gloo's thread, before the work counts as done."""
    x = data(device, 100)
    work = dist.all_reduce(x, async_op=True)
    total = work.get_future().then(lambda done: done.value()[0].sum().item())
    y = x * 2 if device == "lazy" else None
    end_step(device)
    work.wait()
    return total.wait(), y if device == "lazy" else x * 2


@program
def many_at_once(device):
    xs = [data(device, 1000) + i for i in range(20)]
    works = [dist.all_reduce(x, async_op=True) for x in xs]
    results = [x * 2 for x in xs] if device == "lazy" else None
    for work in works:
        work.wait()
    return results or [x * 2 for x in xs]


# ---- Data parallel training ----------------------------------------------------------------------


def train(device, **options):
    torch.manual_seed(dist.get_rank())  # DDP sends rank 0's weights
    model = torch.nn.Sequential(  # a bias before the norm has no gradient but rounding
        torch.nn.Linear(8, 16, bias=False),
        torch.nn.BatchNorm1d(16),
        torch.nn.ReLU(),
        torch.nn.Linear(16, 2),
    ).to(device)
    parallel = DistributedDataParallel(model, **options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(3):
        torch.manual_seed(10 * step + dist.get_rank())
        x, y = torch.randn(4, 8).to(device), torch.randn(4, 2).to(device)
        loss = torch.nn.functional.mse_loss(parallel(x), y)
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad.device == p.device for p in model.parameters())
        optimizer.step()
        losses.append(loss.item())
    return losses, dict(model.state_dict()), [p.grad for p in model.parameters()]


@program
def data_parallel(device):
    return train(device)


@program
def data_parallel_with_bucket_views(device):
    return train(device, gradient_as_bucket_view=True, bucket_cap_mb=0.0001)


@program
def data_parallel_with_a_hook(device):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(8, 2).to(device))
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    model(data(device, 4, 8)).square().sum().backward()
    return [p.grad for p in model.parameters()]


# ---- Both devices, side by side ------------------------------------------------------------------


def end_step(device):
    if device == "lazy":
        import torch_lazy

        torch_lazy.mark_step()


def difference(function):
    expected, got = function("cpu"), function("lazy")
    expected, got = pytree.tree_leaves(expected), pytree.tree_leaves(got)
    for a, b in zip(expected, got, strict=True):
        if isinstance(a, torch.Tensor):
            assert b.device.type == "lazy", f"a result is on {b.device}"
            b = b.cpu()
        torch.testing.assert_close(b, a, **TOLERANCE)
    return ""


def main():
    rank, file = int(sys.argv[1]), sys.argv[2]
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    wrong = {}
    for name, function in PROGRAMS.items():
        print(name, file=sys.stderr, flush=True)  # the last one is where it hangs
        try:
            wrong[name] = difference(function)
        except Exception:
            wrong[name] = traceback.format_exc()
        dist.barrier()
    print(json.dumps(wrong))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
