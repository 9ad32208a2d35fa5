"""A walk along the route of the one before yields what a walk from anew does, or strays; and what a route holds is nobody's."""

from __future__ import annotations

import collections
import gc
import operator
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import detrain.adapters.numpy  # noqa: E402
import detrain.adapters.torch  # noqa: E402
import detrain.state.handlers.standard  # noqa: E402, F401 - registers the handlers
from detrain.state.census import Census  # noqa: E402
from detrain.state.retrace import Retrace, Retracer  # noqa: E402
from detrain.state.route import Survey  # noqa: E402
from detrain.state.walk import Walk  # noqa: E402
from tests.state.roundtrip import assert_same  # noqa: E402


class Holder:
    """An instance of a class of the script's own."""

    def __init__(self, number: int) -> None:
        self.number, self.names, self.inner = number, [f"a{number}", f"b{number}"], {"step": number}


class Trained(SimpleNamespace):
    """A training's variables."""

    model: Any
    optimizer: Any

    @property
    def roots(self) -> dict[str, Any]:
        return vars(self)

    def step(self) -> None:
        self.optimizer.zero_grad(set_to_none=False)
        self.loss = self.model(self.batch).square().mean()
        self.loss.backward()
        self.optimizer.step()
        self.count += 1
        self.history.append(self.loss.item())


@pytest.fixture
def trained() -> Trained:
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(6)), torch.nn.BatchNorm1d(4))
    made = Trained(
        model=model, optimizer=torch.optim.AdamW(model.parameters()), batch=torch.randn(5, 4), count=0, history=[], loss=None,
        holders=[Holder(number) for number in range(5)], pairs=[(number, [number]) for number in range(5)],
        tables=[{"a": number, "b": [number]} for number in range(5)], array=np.arange(6.0), names={"x", "y"},
        sets=[{number, 10, (number,)} for number in range(4)],
        ordered=[collections.OrderedDict(a=[number]) for number in range(4)], buffers=[torch.zeros(3) for _ in range(5)],
    )  # fmt: skip
    made.step()
    return made


@pytest.fixture
def unseen() -> Iterator[None]:
    with torch._C.DisableTorchFunction():
        yield


class Walks:
    """Walks of one program, each compared with one from anew."""

    def __init__(self, roots: dict[str, Any]) -> None:
        self._roots, self._retracer = roots, Retracer()
        self._census = Census(self._anew(None))

    def _anew(self, census: Census | None) -> Any:
        walk = Walk(census)
        for name, value in self._roots.items():
            walk.root(name, value)
        return walk.run()

    def next(self) -> type[Walk]:
        """How the next walk has gone."""
        walk = self._retracer.walk(self._roots, {}, self._census)
        assert_same(walk.captured(), self._anew(self._census))
        return type(walk)


def test_the_walks_of_a_training_go_along_the_route_of_the_second(trained, unseen):
    walks = Walks(trained.roots)
    seen = [walks.next()]
    for _ in range(3):
        with torch.enable_grad():
            trained.step()
        seen.append(walks.next())
    assert seen == [Survey, Retrace, Retrace, Retrace]


#: What may happen to the state, and whether its shape is another one then.
CHANGES: dict[str, tuple[Callable[[Trained], Any], bool]] = {
    "a number of an instance": (lambda t: setattr(t.holders[1], "number", 7.5), False),
    "a text of an instance": (lambda t: t.holders[2].names.__setitem__(0, "changed"), False),
    "a number for a text": (lambda t: t.holders[2].names.__setitem__(0, 5), False),
    "a number of one of many dicts": (lambda t: t.tables[3].update(a=-1), False),
    "one more number in one of many dicts": (lambda t: t.tables[3].update(c=1), False),
    "one more number in one of many lists": (lambda t: t.tables[3]["b"].append(1), False),
    "a large number, which may be an address": (lambda t: t.tables[1].update(a=id(t.model)), False),
    "another object of the same type": (lambda t: t.tables.__setitem__(2, {"a": 9, "b": [9]}), False),
    "another object of the same type and content": (lambda t: t.tables.__setitem__(2, dict(t.tables[2])), False),
    "two objects exchanged": (lambda t: t.holders.reverse(), False),
    "a renamed key": (lambda t: t.tables[2].update(z=t.tables[2].pop("b")), True),
    "keys in another order": (lambda t: t.tables[2].update(a=t.tables[2].pop("a")), False),
    "another order of keys that hold objects": (lambda t: t.holders[0].__dict__.update(names=t.holders[0].__dict__.pop("names")), True),
    "one object less": (lambda t: t.holders.pop(), True),
    "one object more": (lambda t: t.holders.append(Holder(9)), True),
    "an object of another type": (lambda t: t.tables.__setitem__(2, [9]), True),
    "an object for a number": (lambda t: t.tables[2].update(a=[1]), True),
    "a number for an object": (lambda t: t.tables[2].update(b=1), True),
    "a tuple of numbers for one with an object": (lambda t: t.pairs.__setitem__(1, (1, 2)), True),
    "two names for one object": (lambda t: t.tables[2].update(b=t.tables[3]["b"]), True),
    "an object that stands elsewhere as well": (lambda t: t.tables[2].update(b=t.history), True),
    "an attribute more": (lambda t: setattr(t.holders[4], "more", 3), False),
    "an attribute more that is an object": (lambda t: setattr(t.holders[4], "more", []), True),
    "an attribute of a module": (lambda t: setattr(t.model[2], "tag", "frozen"), False),
    "a dict of attributes that is shared": (lambda t: setattr(t.holders[1], "__dict__", t.holders[0].__dict__), True),
    "a dict of attributes that has a name": (lambda t: setattr(t, "names", vars(t.holders[1])), True),
    "a module in evaluation": (lambda t: t.model.eval(), False),
    "an attribute of a tensor": (lambda t: setattr(t.model[1].weight, "tag", "mine"), False),
    "a tensor of another shape": (lambda t: t.buffers.__setitem__(1, torch.zeros(2, 3)), False),
    "a tensor of another dtype": (lambda t: t.buffers.__setitem__(1, torch.zeros(3, dtype=torch.float64)), False),
    "a tensor of complex numbers": (lambda t: t.buffers.__setitem__(1, torch.zeros(3, dtype=torch.complex64)), False),
    "a tensor that is conjugated lazily": (lambda t: t.buffers.__setitem__(1, torch.zeros(3, dtype=torch.complex64).conj()), True),
    "a tensor with other strides": (lambda t: t.buffers.__setitem__(1, torch.zeros(2, 3).T), False),
    "a tensor that is a view": (lambda t: t.buffers.__setitem__(1, torch.zeros(9)[3:6]), False),
    "a tensor that looks into another": (lambda t: t.buffers.__setitem__(1, t.buffers[0][:2]), True),
    "two tensors of one storage": (lambda t: t.buffers.__setitem__(1, t.buffers[0].view(3)), True),
    "a tensor in another place": (lambda t: t.buffers[1].set_(torch.ones(3)), False),
    "a storage of another size": (lambda t: t.buffers[1].untyped_storage().resize_(24), False),
    "a frozen weight": (lambda t: t.model[1].weight.requires_grad_(False), False),
    "no gradients": (lambda t: t.optimizer.zero_grad(), True),
    "one gradient less": (lambda t: setattr(t.model[1].weight, "grad", None), True),
    "a tied weight": (lambda t: setattr(t.model[1], "weight", t.model[0].weight), True),
    "a hook of a tensor": (lambda t: t.model[1].weight.register_hook(print), True),
    "a model of other tensors": (lambda t: t.model.load_state_dict({k: v + 1 for k, v in t.model.state_dict().items()}, assign=True), True),
    "a rate of the optimizer": (lambda t: t.optimizer.param_groups[0].update(lr=0.5), False),
    "an array of another content": (lambda t: t.array.fill(3), False),
    "an array of another size": (lambda t: setattr(t, "array", np.arange(9.0)), False),
    "a set of another content": (lambda t: t.names.add("z"), False),
    "an element more in one of many sets": (lambda t: t.sets[1].add(3), False),
    "another element in the same slot": (lambda t: t.sets[1].symmetric_difference_update({1, 9}), False),
    "a set that `pop` has taken from and that is as before": (lambda t: t.sets[1].add(t.sets[1].pop()), False),
    "an element that was added and removed": (lambda t: (t.sets[1].add(3), t.sets[1].remove(3)), False),
    "a set that has another table": (lambda t: t.sets[1].update(range(100)), False),
    "an emptied set": (lambda t: t.sets[1].clear(), False),
    "an object in a set": (lambda t: t.sets[1].add(t.holders[0]), True),
    "a buffer that is not kept": (lambda t: t.model[1]._non_persistent_buffers_set.add("b"), False),
    "a new variable": (lambda t: setattr(t, "new", 5), True),
    "a variable less": (lambda t: delattr(t, "array"), True),
    "a list that becomes an array": (lambda t: t.history.extend([0.5] * 2000), True),
    "a tensor that carries a graph": (lambda t: t.buffers.__setitem__(1, torch.ones(3, requires_grad=True) * 2), False),
    "a tensor of a layout that has no strides": (lambda t: t.buffers.__setitem__(1, torch.eye(3).to_sparse_csr()), True),
    "a tensor on no device": (lambda t: t.buffers.__setitem__(1, torch.empty(3, device="meta")), True),
    "a tensor of several": (lambda t: t.buffers.__setitem__(1, torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])), True),
    "memory that two objects share": (lambda t: t.buffers.__setitem__(1, torch.from_numpy(t.array)), False),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support", "ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_seen(name, trained, unseen):
    change, is_other_shape = CHANGES[name]
    walks = Walks(trained.roots)
    assert walks.next() is Survey
    assert walks.next() is Retrace
    change(trained)
    assert (walks.next() is not Retrace) == is_other_shape
    walks.next()
    walks.next()


def test_a_shape_that_has_changed_once_gets_another_route(trained, unseen):
    walks = Walks(trained.roots)
    walks.next()
    trained.holders.append(Holder(9))
    assert [walks.next() for _ in range(4)] == [Walk, Walk, Survey, Retrace]


def test_changes_one_after_the_other_are_seen(trained, unseen):
    walks = Walks(trained.roots)
    walks.next()
    for change in (change for change, is_other_shape in CHANGES.values() if not is_other_shape):
        change(trained)
        assert walks.next() is Retrace


def test_a_route_keeps_nothing_alive(trained, unseen):
    walks = Walks(trained.roots)
    walks.next()
    walks.next()
    gone = [
        weakref.ref(one) for one in (trained.holders[3], trained.loss, trained.batch, trained.model, trained.optimizer)
    ]
    vars(trained).clear()
    gc.collect()
    assert [one() for one in gone] == [None] * len(gone)


def test_memory_that_a_look_along_the_route_has_moved_is_not_read(monkeypatch):
    roots = {"tensors": [torch.ones(1000) for _ in range(5)]}
    census, retracer = Census(Retracer().walk(roots).captured()), Retracer()
    for _ in range(2):
        last = retracer.walk(roots, {}, census)
    assert isinstance(last, Retrace)
    assert [array.data.size for array in last.tree.arrays] == [1000] * 5
    finish = Retrace._finish

    def moved(self: Retrace) -> None:
        finish(self)
        roots["tensors"][2].untyped_storage().resize_(0)

    monkeypatch.setattr(Retrace, "_finish", moved)
    last = retracer.walk(roots, {}, census)
    assert isinstance(last, Retrace)
    assert [array.data.size for array in last.tree.arrays] == [1000, 1000, 0, 1000, 1000]
    kept = [node["kept"] for node in last.tree.nodes if node["k"] == "torch.UntypedStorage" and "kept" in node]
    assert len(kept) == 1
    assert "moved" in kept[0]


def test_nodes_that_walks_have_in_common_stay_as_they_are(trained, unseen):
    retracer, roots = Retracer(), trained.roots
    first = Walk()
    for name, value in roots.items():
        first.root(name, value)
    census = Census(first.run())
    trees = []
    for _ in range(3):
        tree = retracer.walk(roots, {}, census).tree
        trees.append((tree, [dict(node) for node in tree.nodes]))
        trained.tables[1]["a"] = id(trained.model)  # named by a node of its own, which replaces the number
        trained.buffers[2] = torch.from_numpy(trained.array)  # memory that two objects share
    assert all(tree.nodes == before for tree, before in trees)
    assert sum(map(operator.is_, trees[1][0].nodes, trees[2][0].nodes)) > 100
