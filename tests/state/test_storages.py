"""Storages whose size the script changes: looking at them does not keep it from that, and their size comes back."""

import copyreg
import zlib

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import detrain.adapters.numpy  # noqa: E402
import detrain.adapters.torch  # noqa: E402
import detrain.state.handlers.standard  # noqa: F401, E402 - registers the handlers
from detrain.state.census import Census  # noqa: E402
from detrain.state.digests import leaves  # noqa: E402
from detrain.state.restore import Origins, Restore  # noqa: E402
from detrain.state.tree import Array, Tree  # noqa: E402
from detrain.state.walk import Walk  # noqa: E402


def look_at(roots, census=None):
    walk = Walk(census)
    for name, obj in roots.items():
        walk.root(name, obj)
    return walk.run()


def saved(roots, census=None):
    """The tree of what there is now, as it would be read from a file."""
    tree = look_at(roots, census).tree
    return Tree(tree.nodes, [Array(one.path, one.data.copy(), one.label) for one in tree.arrays], tree.roots)


def restored(tree, roots):
    walk = look_at(roots)
    return Restore(tree, walk, Origins(walk)).run(roots)


def test_a_storage_that_was_looked_at_can_be_resized():
    one, view = torch.ones(10), torch.zeros(1000)[10:20]
    walk = look_at({"one": one, "view": view})
    one.resize_(2000).fill_(2.0)
    torch.cat([one, one], out=view.resize_(0))
    view.untyped_storage().resize_(0)
    assert len(walk.tree.arrays) == 2


def test_looking_copies_nothing():
    one = torch.arange(10.0)
    (array,) = look_at({"one": one}).tree.arrays
    assert array.data.__array_interface__["data"][0] == one.data_ptr()
    assert array.data.tolist() == one.tolist()


def test_what_was_freed_in_the_script_lives_as_long_as_it_is_looked_at():
    walk = look_at({"one": torch.full((1000,), 3.0)})
    walk.objects.clear()
    others = [torch.zeros(1000) for _ in range(10)]
    assert (walk.tree.arrays[0].data == 3.0).all()
    assert len(others) == 10


def test_memory_that_the_look_itself_has_moved_is_named_and_not_read(monkeypatch):
    buffer = torch.ones(100_000)

    def reduce(_):
        buffer.untyped_storage().resize_(0)
        return zlib.compressobj, ()

    # How a script teaches objects of C to be pickled.
    monkeypatch.setitem(copyreg.dispatch_table, type(zlib.compressobj()), reduce)
    walk = look_at({"buffer": buffer, "dropping": {"deeper": zlib.compressobj()}})
    (node,) = [node for node in walk.tree.nodes if node["k"] == "torch.UntypedStorage"]
    assert node["loud"]
    assert "moved" in node["kept"]
    assert walk.tree.arrays[0].data.size == 0


@pytest.mark.parametrize("num_bytes", [0, 44, 64])
def test_a_leaf_whose_storage_has_become_too_small_tells_nothing(num_bytes):
    whole = torch.ones(1000)
    view = whole[10:20]
    found = leaves(look_at({"view": view}))
    assert [leaf.sketch() != 0 for leaf in found] == [True]
    view.untyped_storage().resize_(num_bytes)
    view.untyped_storage().resize_(num_bytes)
    assert [(leaf.sketch(), leaf.digest()) for leaf in found] == [(0, 0)]


@pytest.mark.parametrize("size", [0, 5, 3000])
def test_a_storage_comes_back_in_its_size_in_place(size):
    def set_up():
        whole = torch.arange(1000.0)
        return {"whole": whole, "view": whole[10:20], "unseen": whole[3:4]}

    roots = set_up()
    unseen = roots.pop("unseen")
    census = Census(look_at(roots))
    roots["whole"].untyped_storage().resize_(size * 4)
    if size >= 1000:
        roots["whole"].resize_(size).fill_(7.0)
    tree = saved(roots, census)
    again = set_up()
    unseen = again.pop("unseen")
    whole, view = again["whole"], again["view"]
    now = restored(tree, again)
    assert now["whole"] is whole
    assert now["view"] is view
    assert [one.untyped_storage().nbytes() for one in (whole, view, unseen)] == [size * 4] * 3
    assert whole.shape == roots["whole"].shape
    whole.untyped_storage().resize_(12000)
    whole.fill_(1.0)
    assert view.sum() == 10.0  # they still look into one storage
    assert unseen.sum() == 1.0


def test_one_that_the_loop_has_made_and_emptied_comes_back_empty():
    made = torch.ones(50)
    looking = made.view(10, 5)[2]
    made.untyped_storage().resize_(0)
    now = restored(saved({"made": made, "looking": looking}), {})
    assert now["made"].shape == (50,)
    assert now["made"].untyped_storage().nbytes() == 0
    now["looking"].untyped_storage().resize_(200)
    now["made"].fill_(2.0)
    assert now["looking"].tolist() == [2.0] * 5


def test_two_empty_storages_stay_two_and_a_shared_one_is_shared():
    shared = torch.empty(0)
    tree = saved({"a": shared, "b": shared[:], "c": torch.empty(0)})
    now = restored(tree, {"a": torch.empty(0), "b": torch.empty(0), "c": torch.empty(0)})
    now["a"].resize_(4).fill_(3.0)
    assert now["b"].untyped_storage().nbytes() == 16
    assert now["c"].untyped_storage().nbytes() == 0


def test_one_that_an_array_looks_into_is_made_in_its_size():
    tensor = torch.arange(6.0)
    roots = {"tensor": tensor, "array": tensor.numpy()}
    now = restored(saved(roots), {"tensor": torch.empty(0), "array": np.empty(2)})
    now["tensor"][1] = 9.0
    assert now["array"].tolist() == [0.0, 9.0, 2.0, 3.0, 4.0, 5.0]
