"""What a restore copies out of a checkpoint's file: late, into the memory where it then lies, and checked there."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import detrain.adapters.numpy  # noqa: E402
import detrain.adapters.torch  # noqa: E402
import detrain.state.handlers.standard  # noqa: F401, E402 - registers the handlers
from detrain.errors import CheckpointError, RestoreError  # noqa: E402
from detrain.state.filearray import in_file  # noqa: E402
from detrain.state.restore import Origins, Restore  # noqa: E402
from detrain.state.tree import Array  # noqa: E402
from detrain.state.walk import Walk  # noqa: E402
from detrain.store import checkpoint  # noqa: E402
from detrain.store.commit import commit  # noqa: E402
from detrain.store.meta import Meta  # noqa: E402

COUNT = 40_000  # elements of four bytes: large enough to stay in the file


def look_at(roots):
    walk = Walk()
    for name, obj in roots.items():
        walk.root(name, obj)
    return walk.run()


@pytest.fixture
def saved(tmp_path):
    """Gives the tree of some roots, read from a file, and the path of the file."""

    def save(roots):
        path = tmp_path / "checkpoint_0_0.h5"
        commit(path, look_at(roots).tree, Meta(1))
        return checkpoint.load(path)[1], path

    return save


def restored(tree, roots):
    captured = look_at(roots)
    return Restore(tree, captured, Origins(captured)).run(roots)


def change(path, content: bytes) -> None:
    with open(path, "r+b") as file:
        offset = file.read().index(content)
        file.seek(offset)
        file.write(bytes([content[0] ^ 1]))


def test_tensors_come_back_in_place_without_a_new_version(saved):
    tree, _ = saved({"one": torch.arange(COUNT), "few": torch.arange(5.0), "half": torch.ones(COUNT).bfloat16()})
    roots = {"one": torch.zeros(COUNT, dtype=torch.int64), "few": torch.zeros(5), "half": torch.zeros(COUNT).bfloat16()}
    before = {name: (id(one), one.data_ptr(), one._version) for name, one in roots.items()}
    found = restored(tree, roots)
    assert {name: (id(one), one.data_ptr(), one._version) for name, one in found.items()} == before
    assert [one.double().sum().item() for one in found.values()] == [COUNT * (COUNT - 1) // 2, 10.0, COUNT]


def test_a_storage_that_moves_after_it_was_filled_gets_the_bytes(saved):
    one = torch.arange(COUNT, dtype=torch.float32)
    deep = [[[one.view(-1)]]]
    expected = one[: COUNT // 2].clone()
    one.untyped_storage().resize_(COUNT * 2)  # smaller than what both look at: to make another such view moves it
    found = restored(saved({"one": one, "deep": deep})[0], {})
    other = found["deep"][0][0][0]
    assert found["one"].untyped_storage()._cdata == other.untyped_storage()._cdata
    assert other.untyped_storage().nbytes() == COUNT * 2
    other.untyped_storage().resize_(COUNT * 4)
    assert torch.equal(found["one"][: COUNT // 2], expected)
    assert torch.equal(other[: COUNT // 2], expected)


@pytest.mark.parametrize("through", ["fill_pending", "fill_now"])
def test_handler_that_needs_the_bytes_before_everything_else_finds_them(saved, through):
    tree, _ = saved({"one": torch.ones(COUNT)})
    live = torch.zeros(COUNT)
    captured = look_at({"one": live})
    restoring = Restore(tree, captured, Origins(captured))
    assert restoring.value(tree.roots["one"], live) is live
    if through == "fill_now":
        restoring.fill_now(tree.roots["one"])
        restoring.fill_now(tree.nodes[tree.roots["one"][1]]["storage"])
    else:
        restoring.fill_pending()
    assert live.sum() == COUNT


@pytest.mark.parametrize("make", [torch.from_numpy, lambda array: array], ids=["tensor", "array"])
def test_file_that_changes_under_the_restore_ends_it_naming_the_leaf(saved, make):
    content = np.random.default_rng(0).random(COUNT)
    tree, path = saved({"train.weight": make(content.copy())})
    change(path, content.tobytes())
    with pytest.raises(CheckpointError, match=r"checkpoint_0_0.h5 has changed at leaf train.weight"):
        restored(tree, {"train.weight": make(np.zeros(COUNT))})


def test_array_that_was_changed_after_it_was_read_is_what_counts(saved):
    tree, _ = saved({"one": torch.zeros(COUNT)})
    (found,) = map(in_file, tree.arrays)
    assert found is not None
    tree.arrays[0] = Array(found.path, found.data + 7, found.label, is_copy=True)
    assert in_file(tree.arrays[0]) is None
    assert restored(tree, {"one": torch.ones(COUNT)})["one"].unique().tolist() == [7.0]


def test_memory_of_another_size_is_never_written_to(saved):
    tree, _ = saved({"one": torch.zeros(COUNT), "few": torch.zeros(4)})
    for node in tree.nodes:
        if "nbytes" in node:
            node["nbytes"] -= 4
    with pytest.raises(RestoreError, match=r"few has 12 bytes, and 16 were saved"):
        restored(tree, {"few": torch.ones(4), "one": torch.ones(COUNT)})
    del tree.roots["few"]
    with pytest.raises(RestoreError, match=r"one has 159996 bytes, and 160000 were saved"):
        restored(tree, {"one": torch.ones(COUNT)})
