"""What is exported of live objects is what their own `state_dict()` gives."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import detrain.adapters.torch.adapter  # noqa: E402 - registers the handlers
import detrain.state.handlers.standard  # noqa: E402, F401
from detrain.errors import CheckpointError, UsageError  # noqa: E402
from detrain.export import files, states  # noqa: E402
from detrain.export.reading import Reader  # noqa: E402
from detrain.state.tree import Array, Tree  # noqa: E402
from detrain.state.walk import Walk  # noqa: E402
from detrain.store.commit import commit  # noqa: E402
from tests.store.conftest import make_meta  # noqa: E402


class Net(torch.nn.Module):
    """Tied weights, buffers that are and are not saved, a module that stands twice."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(7, 4)
        self.body = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.ReLU())
        self.again = self.body[0]
        self.head = torch.nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scratch", torch.zeros(2), persistent=False)
        self.register_buffer("small", torch.arange(3).to(torch.bfloat16))
        self.column = torch.nn.Parameter(torch.arange(12.0).reshape(3, 4).t(), requires_grad=False)

    def forward(self, x: Any) -> Any:
        return self.head(self.again(self.body(self.embed(x))))


@pytest.fixture
def trained() -> dict[str, Any]:
    """Variables of a script in the middle of its training."""
    torch.manual_seed(2)
    model = Net()
    groups = [{"params": list(model.body.parameters())}, {"params": [model.head.weight], "lr": 0.5}]
    optimizer = torch.optim.AdamW(groups, lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.arange(6)).square().mean().backward()
        optimizer.step()
        scheduler.step()
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler, "epoch": 3, "names": ["a", "b"]}


def write(path: Path, variables: dict[str, Any]) -> Path:
    """A checkpoint of these variables."""
    walk = Walk()
    for name, value in variables.items():
        walk.root(f"train.main.{name}", value)
    commit(path, walk.run().tree, make_meta(4))
    return path


def assert_same(found: Any, expected: Any) -> None:
    """The same structure, values and bits."""
    if isinstance(expected, torch.Tensor):
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        for key, value in expected.items():
            assert_same(found[key], value)
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    else:
        assert found == expected


def test_one_file_for_torch(tmp_path: Path, trained: dict[str, Any]) -> None:
    source = write(tmp_path / "checkpoint_2_5.h5", trained)
    lines = files.export(source, tmp_path / "out.pt")
    assert lines == ["model model: 13 tensors", "optimizer optimizer", "scheduler scheduler"]
    found = torch.load(tmp_path / "out.pt", weights_only=True)
    assert_same(found["model"], dict(trained["model"].state_dict()))
    assert_same(found["optimizer"], trained["optimizer"].state_dict())
    assert found["detrain"]["values"] == {"epoch": 3}
    assert (found["detrain"]["epochs"], found["detrain"]["batches"]) == (3, 25)
    model = Net()
    model.load_state_dict(found["model"])
    optimizer = torch.optim.AdamW([{"params": list(model.body.parameters())}, {"params": [model.head.weight]}])
    optimizer.load_state_dict(found["optimizer"])
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    scheduler.load_state_dict(found["scheduler"])
    assert scheduler.get_last_lr() == trained["scheduler"].get_last_lr()


def test_safetensors(tmp_path: Path, trained: dict[str, Any]) -> None:
    load_file = pytest.importorskip("safetensors.torch").load_file
    files.export(write(tmp_path / "checkpoint_2_5.h5", trained), tmp_path / "out.safetensors")
    assert_same(
        dict(sorted(load_file(tmp_path / "out.safetensors").items())),
        dict(sorted(trained["model"].state_dict().items())),
    )


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_folder_for_distributed_checkpoints(tmp_path: Path, trained: dict[str, Any]) -> None:
    files.export(write(tmp_path / "checkpoint_2_5.h5", trained), tmp_path / "out")
    model = Net()
    wanted = {"model": model.state_dict()}
    torch.distributed.checkpoint.load(wanted, checkpoint_id=tmp_path / "out", no_dist=True)
    assert_same(wanted["model"], trained["model"].state_dict())


def test_several_models_have_their_shortest_names(tmp_path: Path) -> None:
    load_file = pytest.importorskip("safetensors.torch").load_file
    parts = {
        "generator": torch.nn.Linear(2, 2),
        "d": {"critic": torch.nn.Linear(2, 1)},
        "nets": [torch.nn.Linear(1, 1)],
    }
    source = write(tmp_path / "checkpoint_2_5.h5", {**parts, "again": parts["generator"]})
    files.export(source, tmp_path / "out.safetensors")
    names = {name.rpartition(".")[0] for name in load_file(tmp_path / "out.safetensors")}
    assert names == {"generator", "d['critic']", "nets[0]"}


def test_names_are_as_short_as_they_can_be() -> None:
    assert states.short_names(["train.main.model", "train.ema.model", "train.main.opt"]) == {
        "train.main.model": "main.model",
        "train.ema.model": "ema.model",
        "train.main.opt": "opt",
    }


@pytest.mark.parametrize("has_both", [False, True])
def test_wrappers_are_left_out(tmp_path: Path, has_both: bool) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    parts = {"ddp": torch.nn.DataParallel(model), "criterion": torch.nn.CrossEntropyLoss()}
    source = write(tmp_path / "checkpoint_2_5.h5", {**({"model": model} if has_both else {}), **parts})
    assert files.export(source, tmp_path / "out.pt") == [f"model {'model' if has_both else 'ddp'}: 2 tensors"]
    found = torch.load(tmp_path / "out.pt")
    assert_same(found["model" if has_both else "ddp"], dict(model.state_dict()))


def test_schedulers_of_functions_and_of_schedulers(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)

    def make() -> list[Any]:
        schedules = torch.optim.lr_scheduler
        parts = [schedules.ConstantLR(optimizer, 0.5, 2), schedules.ExponentialLR(optimizer, 0.9)]
        return [schedules.LambdaLR(optimizer, lambda step: 0.9**step), schedules.SequentialLR(optimizer, parts, [2])]

    warm, several = make()
    optimizer.step()
    warm.step()
    several.step()
    source = write(tmp_path / "checkpoint_2_5.h5", {"model": model, "warm": warm, "several": several})
    files.export(source, tmp_path / "out.pt")
    found = torch.load(tmp_path / "out.pt")
    for name, live, anew in zip(("warm", "several"), (warm, several), make(), strict=True):
        assert found[name].keys() == live.state_dict().keys()
        anew.load_state_dict(found[name])
        assert anew.get_last_lr() == live.get_last_lr()


def test_an_optimizer_with_state_of_its_own(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = (model(torch.ones(1, 2)) - 3).square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    optimizer.state["note"] = 7
    files.export(write(tmp_path / "checkpoint_2_5.h5", {"optimizer": optimizer}), tmp_path / "out.pt")
    assert_same(torch.load(tmp_path / "out.pt")["optimizer"], optimizer.state_dict())


def test_sparse_tensors_are_refused(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    model.register_buffer("graph", torch.eye(2).to_sparse())
    with pytest.raises(CheckpointError, match=r"train\.main\.model\.graph is sparse"):
        files.export(write(tmp_path / "checkpoint_2_5.h5", {"model": model}), tmp_path / "out.pt")


@pytest.mark.parametrize(
    ("name", "why"),
    [("out.txt", "is of no known kind"), ("missing/out.pt", "cannot be written"), ("there.pt", "is there already")],
)
def test_targets_that_are_refused(tmp_path: Path, trained: dict[str, Any], name: str, why: str) -> None:
    (tmp_path / "there.pt").write_bytes(pickle.dumps(1))
    with pytest.raises(UsageError, match=why):
        files.export(write(tmp_path / "checkpoint_2_5.h5", trained), tmp_path / name)
    assert pickle.loads((tmp_path / "there.pt").read_bytes()) == 1


def test_a_checkpoint_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"checkpoint_2_5\.h5 holds no model"):
        files.export(write(tmp_path / "checkpoint_2_5.h5", {"x": [1, 2]}), tmp_path / "out.pt")


# --- distributed tensors ---------------------------------------------------------------------------------------------


def shards(whole: np.ndarray, placements: list[str], sizes: list[int], lay_out: Any) -> list[Tree]:
    """The trees of as many ranks, each with its part of one distributed tensor."""
    mesh = np.arange(int(np.prod(sizes))).reshape(sizes)
    trees = []
    for rank in mesh.flat:
        at = [int(places[0]) for places in np.where(mesh == rank)]
        local = np.ascontiguousarray(lay_out(whole, at))
        nodes = [
            {
                "k": "torch.DTensor", "t": "torch.distributed.tensor:DTensor", "p": None, "s": "w", "shape": list(whole.shape),
                "placements": placements, "mesh": [sizes, mesh.flatten().tolist()], "value": ["@", 1],
            },
            {"k": "buffer", "t": "torch:Tensor", "p": 0, "s": ".<local>", "array": 0},
        ]  # fmt: skip
        trees.append(Tree(nodes, [Array("w", local)], {"w": ["@", 0]}))
    return trees


WHOLE = np.arange(35.0).reshape(5, 7)


@pytest.mark.parametrize(
    ("placements", "sizes", "lay_out"),
    [
        (["S(0)"], [3], lambda whole, at: [whole[:2], whole[2:4], whole[4:]][at[0]]),
        (["S(1)"], [2], lambda whole, at: np.array_split(whole, 2, axis=1)[at[0]]),
        (["R"], [2], lambda whole, at: whole),
        (["R", "S(0)"], [2, 2], lambda whole, at: np.array_split(whole, 2)[at[1]]),
        (["S(0)", "S(1)"], [2, 2], lambda whole, at: np.array_split(np.array_split(whole, 2)[at[0]], 2, axis=1)[at[1]]),
        (["S(0)"], [6], lambda whole, at: whole[at[0] : at[0] + 1]),
    ],
    ids=["rows", "columns", "replicated", "hybrid", "both", "an empty shard"],
)
def test_shards_are_put_together(placements: list[str], sizes: list[int], lay_out: Any) -> None:
    found = Reader(shards(WHOLE, placements, sizes, lay_out)).tensor(["@", 0])
    assert found.data.tobytes() == WHOLE.tobytes()
    assert found.data.shape == WHOLE.shape


def test_shards_that_cannot_be_put_together_are_refused() -> None:
    def lay_out(whole: np.ndarray, at: list[int]) -> np.ndarray:
        return np.array_split(whole, 2)[at[0]]

    two = shards(WHOLE, ["S(0)"], [2], lay_out)
    with pytest.raises(
        CheckpointError, match="w is spread over 2 ranks, and this is a checkpoint of one: export the cut"
    ):
        Reader(two[:1]).tensor(["@", 0])
    with pytest.raises(CheckpointError, match=r"w is laid out as _S\(0, 2\), which cannot be put together"):
        Reader(shards(WHOLE, ["_S(0, 2)"], [2], lay_out)).tensor(["@", 0])
    with pytest.raises(CheckpointError, match=r"make \[3, 7\], and not \[5, 7\]"):
        Reader([two[0], *shards(WHOLE, ["S(0)"], [2], lambda whole, at: whole[:0])[1:]]).tensor(["@", 0])
