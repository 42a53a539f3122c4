"""``doppler capture``: models of one's own as graph files, and what is wrong with their code."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

from safetensors.torch import load_file

from doppler import load_graph

NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.second = nn.Linear(16, 4)
        self.register_buffer("scale", torch.ones(4), persistent=False)

    def forward(self, x, bias=None):
        y = self.second(torch.relu(self.first(x))) * self.scale
        return y if bias is None else y + bias

def example():
    print("made")
    return Net().eval(), (torch.ones(8, 8),)

def keywords():
    return Net(), (torch.ones(8, 8),), {"bias": torch.ones(4)}

def mapping():
    return Net(), {"x": torch.ones(8, 8)}

def on_meta():
    with torch.device("meta"):
        return Net(), (torch.ones(8, 8),)

class Nested:
    @staticmethod
    def example():
        return example()

def needs(size):
    return example()

def fails():
    raise ValueError("no such\\nsize")

def exits():
    raise SystemExit(3)

def taken():
    return Net(), (torch.ones(8, 8),), {}, torch.sum

def alone():
    return Net()

def swapped():
    return (torch.ones(8, 8),), Net()

def wrong_shape():
    return Net(), (torch.ones(8, 9),)

def number():
    return Net(), 3

class Loss(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = Net()

    def forward(self, x, y):
        return nn.functional.mse_loss(self.net(x), y)

def loss():
    return Loss(), (torch.ones(8, 8), torch.ones(8, 4))

class Branch(nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return x + 1
        return x - 1

def branch():
    return Branch(), (torch.ones(2),)

VALUE = 3
"""


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current directory, with a package ``mine`` whose module ``net`` makes models."""
    package = tmp_path / "mine"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "net.py").write_text(NET)
    (package / "broken.py").write_text("import torch\nimport no_such_package\n")
    (package / "syntax.py").write_text("x = 1\ndef :\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in [name for name in sys.modules if name.partition(".")[0] == "mine"]:
        monkeypatch.delitem(sys.modules, name)
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "mine"]:
        del sys.modules[name]


def json_of(cli, *arguments: object) -> dict:
    """What a command prints with --json, where the model's code may print to stderr."""
    done = cli(*arguments, "--json")
    assert done.code == 0, done.err
    assert done.out.count("\n") == 1
    return json.loads(done.out)


def test_json_tells_what_was_captured(cli, net) -> None:
    done = cli("capture", "mine.net:example", "-o", "net.json", "--json")
    assert done.err == "made\n"  # What the model's own code prints is not the result.
    values = json_of(cli, "capture", "mine.net:example", "-o", "net.json")
    assert (values["graph"], values["mode"], values["shard"]) == ("Net", "eval", {})
    assert values["parameters"] == 8 * 16 + 16 + 16 * 4 + 4
    assert values["parameter_bytes"] == 4 * values["parameters"]
    assert values["state_bytes"] == 16
    assert values["input_bytes"] == 8 * 8 * 4
    assert values["flops"] >= 2 * 8 * (8 * 16 + 16 * 4)
    assert values["largest_op"]["kind"] == "linear"
    assert values["weights"] is None
    graph = load_graph(net / "net.json")
    assert (graph.n_ops, graph.n_edges) == (values["ops"], values["edges"])
    assert {tensor.role for tensor in graph.tensors.values()} == {"input", "parameter", "buffer"}


def test_text_tells_it_to_people(cli, net) -> None:
    done = cli("capture", "mine.net:example", "-o", "net.json", "--shard", "batch=2")
    assert done.code == 0, done.err
    assert done.out.startswith("Net, from mine.net:example\n")
    assert "batch in 2" in done.out
    assert "212 in 4 tensors" in done.out
    assert "of the compute" in done.out


@pytest.mark.parametrize("function", ["keywords", "mapping", "Nested.example", "on_meta"])
def test_inputs_may_be_given_in_several_ways(cli, net, function) -> None:
    assert json_of(cli, "capture", f"mine.net:{function}", "-o", "net.json")["ops"] > 0
    names = {
        name for name, each in load_graph(net / "net.json").tensors.items() if each.role == "input"
    }
    assert names == ({"x", "bias"} if function == "keywords" else {"x"})


def test_shards_and_fusion_shape_the_graph(cli, net) -> None:
    whole = json_of(cli, "capture", "mine.net:example", "-o", "net.json", "--fusion", 0)
    batch = json_of(
        cli, "capture", "mine.net:example", "-o", "b.json", "--fusion", 0, "--shard", "batch=4"
    )
    assert batch["ops"] == 4 * whole["ops"]
    assert batch["meta_ops"] == whole["meta_ops"]
    assert batch["flops"] == pytest.approx(whole["flops"])


def test_the_graph_is_one_for_the_other_commands(cli, net) -> None:
    json_of(cli, "capture", "mine.net:example", "-o", "net.json", "--shard", "batch=2")
    graph = load_graph(net / "net.json")
    assert graph.specs is not None
    assert {spec.dtype for spec in graph.tensors.values()} == {"float32"}
    assert json_of(cli, "show", "net.json")["kind"] == "graph"
    placed = json_of(cli, "place", "net.json", "-c", "a100x4", "-m", "heft", "-o", "placed.json")
    again = json_of(cli, "simulate", "net.json", "placed.json", "-c", "a100x4")
    assert again["makespan_s"] == pytest.approx(placed["makespan_s"])
    check = json_of(cli, "run", "net.json", "placed.json", "--check")["check"]
    assert check["largest_difference"] <= check["tolerance"]


def test_a_training_step_has_a_gradient_for_every_parameter(cli, net) -> None:
    forward = json_of(cli, "capture", "mine.net:loss", "-o", "forward.json")
    step = json_of(cli, "capture", "mine.net:loss", "-o", "step.json", "--train")
    assert (forward["training"], step["training"]) == (False, True)
    assert step["flops"] > 2 * forward["flops"]
    graph = load_graph(net / "step.json")
    outputs = {tile.tensor for tile in graph.outputs.values()}
    parameters = {name for name, each in graph.tensors.items() if each.role == "parameter"}
    assert {f"grad:{name}" for name in parameters} == outputs - {"output0"}
    taken = json_of(cli, "capture", "mine.net:taken", "-o", "taken.json", "--train")
    assert taken["training"]
    refusal = cli("capture", "mine.net:mapping", "-o", "no.json", "--train").refusal()
    assert "the loss has shape (8, 4), must be one number" in refusal


def test_a_graph_goes_to_stdout_alone(cli, net) -> None:
    done = cli("capture", "mine.net:example", "-o", "-")
    assert done.code == 0
    (net / "piped.json").write_text(done.out)
    assert load_graph(net / "piped.json").name == "Net"


def test_weights_lie_beside_the_graph(cli, net) -> None:
    done = json_of(
        cli, "capture", "mine.net:example", "-o", "net.json", "--weights", "w.safetensors"
    )
    assert done["weights"] == "w.safetensors"
    held = load_file(net / "w.safetensors")
    names = {"first.weight", "first.bias", "second.weight", "second.bias", "scale"}
    assert held.keys() == names
    cli("place", "net.json", "-c", "uniform:2", "-m", "round_robin", "-o", "placed.json")
    run = ["run", "net.json", "placed.json", "--check", "--weights"]
    assert json_of(cli, *run, "w.safetensors")["check"]["largest_difference"] == 0
    assert "w2.safetensors: no such file of tensors" in cli(*run, "w2.safetensors").refusal()
    (net / "w2.safetensors").write_bytes((net / "w.safetensors").read_bytes()[:100])
    assert "w2.safetensors: corrupt" in cli(*run, "w2.safetensors").refusal()
    assert "could use them" in cli(*run[:3], "--backend", "emulated", *run[4:], "x").refusal()


def test_weights_on_the_meta_device_have_no_values(cli, net) -> None:
    arguments = ["capture", "mine.net:on_meta", "-o", "net.json", "--weights", "w.safetensors"]
    assert "is on the meta device and has no values" in cli(*arguments).refusal()
    assert not (net / "net.json").exists()
    assert not (net / "w.safetensors").exists()


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("mine.net", "write it as package.module:function"),
        ("mine/net.py:example", "write it as package.module:function: mine.net:example"),
        (":example", "write it as package.module:function"),
        ("mine.net:", "write it as package.module:function"),
        ("nowhere:example", "there is no module 'nowhere' in {folder}, nor among"),
        ("mine.nt:example", "there is no module 'mine.nt' in {folder}, nor among"),
        ("mine.broken:example", "broken.py:2: ModuleNotFoundError: No module named 'no_such_p"),
        ("mine.syntax:example", "syntax.py:2: SyntaxError: invalid syntax"),
        ("mine.net:on_met", "unknown function of mine.net 'on_met': did you mean 'on_meta'?"),
        ("mine.net:VALUE", "is 3, must be a function"),
        ("mine.net:needs", "takes the arguments (size), but is called without any"),
        ("mine.net:fails", "net.py:39: ValueError: no such size"),
        ("mine.net:exits", "net.py:42: SystemExit: 3"),
        ("mine.net:alone", "returned a model alone; it must return (model, example_inputs)"),
        ("mine.net:swapped", "as the model, which is no torch.nn.Module"),
        ("mine.net:number", "example_inputs is 3, must be a tuple"),
        ("mine.net:wrong_shape", "net.py:13: "),
        ("mine.net:branch", "net.py:72: if x.sum() > 0:"),
    ],
)
def test_what_is_wrong_with_the_code_is_one_line(cli, net, function, message) -> None:
    refusal = cli("capture", function, "-o", "net.json").refusal()
    assert message.format(folder=net) in refusal
    assert not (net / "net.json").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shard", "batch"], "write it as batch=4 or tensor=2"),
        (["--shard", "batch=two"], "write it as batch=4 or tensor=2"),
        (["--shard", "batch=0"], "must be a whole number from 1"),
        (["--shard", "batch=3"], "a batch of 8 cannot be cut into 3 equal parts"),
        (["--shard", "btch=2"], "did you mean 'batch'?"),
        (["--shard", "batch=2", "--shard", "batch=4"], "batch is given twice"),
        (["--fusion", "-1"], "fusion is -1.0, must be a number from 0 to 1"),
        (["--weights", "net.json"], "is the graph file already"),
        (["--weights", "/"], "it is a directory"),
    ],
)
def test_options_that_do_not_go_are_refused(cli, net, arguments, message) -> None:
    done = cli("capture", "mine.net:mapping", "-o", "net.json", *arguments)
    assert message in done.refusal()
    assert not (net / "net.json").exists()


def test_the_current_directory_is_searched_by_the_command_itself(net) -> None:
    command = [sys.executable, "-c", "from doppler.cli import main; main()"]
    done = subprocess.run(
        [*command, "capture", "mine.net:mapping", "-o", "net.json", "--json"],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=net,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith('{"function": "mine.net:mapping"')
