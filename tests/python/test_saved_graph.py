"""torch_lazy.save_graph and load_graph: inference and training steps as files."""

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from test_cpp_example import programs  # noqa: F401
from torch import nn
from torch.nn import functional as F

import torch_lazy

pytestmark = pytest.mark.usefixtures("nothing_pending")
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.embedding = nn.Embedding(11, 8)
        self.norm = nn.LayerNorm(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True, dropout=0.0)
        self.head = nn.Linear(8, 11)

    def forward(self, ids):
        x = self.norm(self.embedding(ids))
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.head(F.gelu(x))


def ids():
    return torch.arange(12).remainder(11).view(3, 4)


def test_inference(tmp_path):
    model = Model().to("lazy").eval()

    def logits(x):
        with torch.no_grad():
            return {"logits": model(x), "best": model(x).argmax(-1)}

    torch_lazy.save_graph(logits, tmp_path / "model.graph", [ids()])
    graph = torch_lazy.load_graph(tmp_path / "model.graph")
    assert graph.arguments == ["Long[3,4]"]
    for shift in range(4):
        x = ids().add(shift).remainder(11)
        values, best = graph(x)
        expected = Model().eval()(x)
        torch.testing.assert_close(values.cpu(), expected.detach(), **CLOSE)
        assert best.tolist() == expected.argmax(-1).tolist()


@pytest.mark.parametrize("trained", [0, 3])
@pytest.mark.parametrize("name", ["AdamW", "SGD"])
def test_training_goes_on_where_it_was(tmp_path, name, trained):
    options = {"AdamW": {"lr": 1e-2}, "SGD": {"lr": 0.1, "momentum": 0.9}}[name]

    def make(device):
        model = Model().to(device)
        optimizer = getattr(torch.optim, name)(model.parameters(), **options)

        def step(x):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x).flatten(0, 1), x.flatten())
            loss.backward()
            optimizer.step()
            return loss

        return model, step

    (model, step), (eager, eager_step) = make("lazy"), make("cpu")
    for _ in range(trained):
        step(ids().to("lazy"))
        eager_step(ids())
    before = {k: v.cpu().clone() for k, v in model.state_dict().items()}
    torch_lazy.save_graph(step, tmp_path / "step.graph", [ids()])
    for key, value in model.state_dict().items():
        assert torch.equal(value.cpu(), before[key]), "saving changed the model"
    graph = torch_lazy.load_graph(tmp_path / "step.graph")
    for shift in range(6):
        x = ids().add(shift).remainder(11)
        torch.testing.assert_close(graph(x)[0].cpu(), eager_step(x).detach(), **CLOSE)
    weights = {k: v for k, v in graph.state.items() if k.endswith("head.weight")}
    (weight,) = weights.values()
    torch.testing.assert_close(weight.cpu(), eager.head.weight.detach(), **CLOSE)


def test_random_numbers_are_drawn_anew(tmp_path):
    def f(x):
        return F.dropout(x, 0.5)

    torch_lazy.save_graph(f, tmp_path / "f.graph", [torch.ones(64)])
    graph = torch_lazy.load_graph(tmp_path / "f.graph")
    torch.manual_seed(4)
    first, second = graph(torch.ones(64))[0].cpu(), graph(torch.ones(64))[0].cpu()
    torch.manual_seed(4)
    assert torch.equal(first, F.dropout(torch.ones(64), 0.5))
    assert torch.equal(second, F.dropout(torch.ones(64), 0.5))


def test_plain_tensors_are_constants(tmp_path):
    table = torch.randn(5, 3)
    unused = torch.ones(2)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3, 3, device="lazy"))
            self.unused = unused  # no buffer: stays where it is

        @torch.no_grad()
        def forward(self, x):
            return x @ self.weight + table[1:3].to("lazy") + table.t().to("lazy").sum()

    model = Model()
    x = torch.randn(2, 3)
    torch_lazy.save_graph(model, tmp_path / "f.graph", [x])
    expected = model(x.to("lazy")).cpu()
    table.zero_()  # later than the file
    graph = torch_lazy.load_graph(tmp_path / "f.graph")
    for _ in range(3):
        torch.testing.assert_close(graph(x)[0].cpu(), expected, **CLOSE)
    assert [name.rpartition(".")[2] for name in graph.state] == ["weight"]


def test_what_cannot_be_saved(tmp_path):
    path = tmp_path / "f.graph"
    with pytest.raises(RuntimeError, match="cannot be saved: it reads a number"):
        torch_lazy.save_graph(lambda x: x * x.sum().item(), path, [torch.ones(2)])
    with pytest.raises(TypeError, match="example_inputs are tensors"):
        torch_lazy.save_graph(lambda x: x, path, [3])
    host = torch.ones(2)
    with pytest.raises(RuntimeError, match=r"cannot be saved: .* computes with host"):
        torch_lazy.save_graph(lambda x: x + (host * 2).to("lazy"), path, [torch.ones(2)])
    assert not path.exists()
    with pytest.raises(RuntimeError, match="cannot read"):
        torch_lazy.load_graph(path)
    path.write_bytes(b"hello")
    with pytest.raises(RuntimeError, match="no graph saved by"):
        torch_lazy.load_graph(path)
    with pytest.raises(RuntimeError, match="cannot write"):
        torch_lazy.save_graph(lambda x: x + 1, tmp_path / "no" / "f.graph", [torch.ones(2)])


# ---- What a path is ------------------------------------------------------------------------------


def double(x):
    return x * 2


def assert_doubles(path):
    assert torch_lazy.load_graph(path)(torch.ones(2))[0].tolist() == [2, 2]


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_stays_one(tmp_path, exists):
    (tmp_path / "folder").mkdir()
    target, link = tmp_path / "folder" / "target", tmp_path / "link"
    if exists:
        target.write_text("old")
    (tmp_path / "other").symlink_to("folder/target")
    link.symlink_to(tmp_path / "other")
    torch_lazy.save_graph(double, link, [torch.ones(2)])
    assert link.is_symlink() and (tmp_path / "other").is_symlink() and not target.is_symlink()
    assert_doubles(target)
    assert {p.name for p in tmp_path.rglob("*")} == {"folder", "target", "link", "other"}


def test_links_without_an_end(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(RuntimeError, match=r"cannot write .*/a: "):
        torch_lazy.save_graph(double, tmp_path / "a", [torch.ones(2)])


def test_a_pipe_is_written_into(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with ThreadPoolExecutor(1) as pool:
        contents = pool.submit(path.read_bytes)
        torch_lazy.save_graph(double, path, [torch.ones(2)])
        assert path.is_fifo()
        (tmp_path / "f.graph").write_bytes(contents.result(timeout=60))
    assert_doubles(tmp_path / "f.graph")


def test_a_descriptor_is_written_into(tmp_path):
    with (tmp_path / "f.graph").open("wb") as file:
        torch_lazy.save_graph(double, f"/proc/self/fd/{file.fileno()}", [torch.ones(2)])
    assert_doubles(tmp_path / "f.graph")
    gone = (tmp_path / "gone").open("w+b")
    (tmp_path / "gone").unlink()
    with gone:
        torch_lazy.save_graph(double, f"/proc/self/fd/{gone.fileno()}", [torch.ones(2)])
        (tmp_path / "f.graph").write_bytes(gone.read())
    assert_doubles(tmp_path / "f.graph")
    assert [p.name for p in tmp_path.iterdir()] == ["f.graph"]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o666, 0o755])
def test_a_file_keeps_its_mode(tmp_path, mode):
    path = tmp_path / "f.graph"
    path.write_text("old")
    path.chmod(mode)
    torch_lazy.save_graph(double, path, [torch.ones(2)])
    assert path.stat().st_mode & 0o7777 == mode
    assert_doubles(path)


def test_a_new_file_has_the_mode_of_new_files(tmp_path):
    (tmp_path / "other").touch()
    torch_lazy.save_graph(double, tmp_path / "f.graph", [torch.ones(2)])
    assert (tmp_path / "f.graph").stat().st_mode == (tmp_path / "other").stat().st_mode


@pytest.mark.parametrize("name", [b"a" * 255, "größe".encode(), b"\xff\xfe", b"with\nline"])
def test_names_of_files(tmp_path, name):
    for path in (bytes(tmp_path) + b"/" + name, tmp_path / os.fsdecode(name)):
        torch_lazy.save_graph(double, path, [torch.ones(2)])
        assert_doubles(path)
        os.unlink(path)
    missing = bytes(tmp_path) + b"/missing/" + name
    shown = name.decode(errors="backslashreplace")
    for call in (
        lambda: torch_lazy.save_graph(double, missing, [torch.ones(2)]),
        lambda: torch_lazy.load_graph(missing),
    ):
        with pytest.raises(RuntimeError) as error:
            call()
        assert f"/missing/{shown}" in str(error.value)


def test_a_name_with_a_null_is_not_cut_off(tmp_path):
    with pytest.raises(RuntimeError, match="cannot write"):
        torch_lazy.save_graph(double, f"{tmp_path}/a\0b", [torch.ones(2)])
    torch_lazy.save_graph(double, tmp_path / "a", [torch.ones(2)])
    with pytest.raises(RuntimeError, match="cannot read"):
        torch_lazy.load_graph(f"{tmp_path}/a\0b")


@pytest.mark.slow
def test_from_cpp(tmp_path, programs):  # noqa: F811
    """A training step of Python's, loaded and run by a program without Python."""
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).to("lazy")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    path = tmp_path / "step.graph"
    torch_lazy.save_graph(step, path, [torch.zeros(6, 4), torch.zeros(6, dtype=torch.int64)])
    environment = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [str(programs / "run_graph"), str(path), "12"],
        check=True,
        capture_output=True,
        text=True,
        env=environment | {"TORCH_LAZY_COMPILER": "off"},
    )
    losses = [float(line) for line in run.stdout.split()]
    torch.manual_seed(0)
    x, y = torch.randn(6, 4), torch.randint(2, (6,))
    expected = [step(x.to("lazy"), y.to("lazy")).item() for _ in range(12)]
    assert losses == pytest.approx(expected, rel=1e-4)
    assert losses[-1] < losses[0]
    path.write_bytes(path.read_bytes()[:-40])
    broken = subprocess.run(
        [str(programs / "run_graph"), str(path)], capture_output=True, text=True, env=environment
    )
    assert broken.returncode == 1
    assert "the file is damaged" in broken.stderr


@pytest.mark.slow
def test_compiled_training_in_cpp(programs):  # noqa: F811
    environment = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [str(programs / "train_compiled")],
        check=True,
        capture_output=True,
        text=True,
        env=environment | {"TORCH_LAZY_COMPILER": "off"},
    )
    pairs = [[float(x) for x in line.split()] for line in run.stdout.splitlines()]
    assert len(pairs) == 20
    for plain, compiled in pairs:
        assert compiled == pytest.approx(plain, rel=1e-4)
    replayed = int(run.stderr.split(" of 20 steps replayed")[0].split()[-1])
    assert replayed >= 12
