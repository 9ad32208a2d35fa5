"""A field's name says how it holds refs: what a script has in its objects is never taken for a ref, and nothing is passed over."""

import collections
import itertools
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import detrain.state.handlers.standard  # noqa: F401 - registers the handlers
from detrain.proof.comparison import Comparison, Side
from detrain.state import fields, machinery, registry
from detrain.state.fields import Holds
from detrain.state.handler import Handler
from detrain.state.restore import Origins, Restore
from detrain.state.tree import Tree
from detrain.state.walk import Walk
from detrain.store import grafts
from detrain.store.meta import Meta

META = Meta(1, folder="/nowhere")

#: Texts with which the encoded values of a tree begin, and what may stand behind them.
TAGS = ["@", "f", "i", "b", "c", "t"]
HOLDERS = {
    "repeat": lambda tag: itertools.repeat(tag, 5),
    "repeat, of numbers": lambda tag: itertools.repeat(5, 2),
    "compress": lambda tag: itertools.compress(iter([tag, 5]), iter([1, 1])),
    "list": lambda tag: [tag, 5],
    "tuple": lambda tag: (tag, 5),
    "tuple, of objects": lambda tag: (tag, []),
    "set": lambda tag: {tag, 5},
    "iterator over a set": lambda tag: iter({tag}),
    "iterator over a dict": lambda tag: iter({tag: 5, "x": 5}),
    "deque": lambda tag: collections.deque([tag, 5]),
    "dict": lambda tag: {tag: 5},
    "dict, of tags": lambda tag: {"x": tag, tag: [tag]},
    "attributes": lambda tag: SimpleNamespace(x=tag, t=5),
    "exception": lambda tag: ValueError(tag, 5),
    "slice": lambda tag: slice(tag, 5),
}


def capture(**roots):
    walk = Walk()
    for name, value in roots.items():
        walk.root(name, value)
    return walk.run()


def as_read(tree):
    """As from a file."""
    return Tree(json.loads(json.dumps(tree.nodes)), tree.arrays, json.loads(json.dumps(tree.roots)))


def differences(one, other):
    sides = [
        Side(SimpleNamespace(meta=META, path=Path("/nowhere/checkpoint_0_0.h5")), as_read(capture(x=value).tree))
        for value in (one, other)
    ]
    comparison = Comparison(*sides)
    comparison.run()
    return [(found["path"], found["what"]) for found in comparison.differences]


@pytest.mark.parametrize("tag", TAGS)
@pytest.mark.parametrize("make", HOLDERS.values(), ids=HOLDERS)
def test_a_text_that_looks_like_the_trees_own_is_a_text(make, tag):
    assert differences(make(tag), make(tag)) == []
    captured = capture(x=make(tag))
    assert all(isinstance(path, str) for path, _ in captured.tree.leaves())
    assert machinery.of_libraries(captured.tree) == set()


@pytest.mark.parametrize("tag", TAGS)
def test_a_difference_in_the_arguments_of_an_iterator_is_found(tag):
    assert differences(itertools.repeat(tag, 5), itertools.repeat(tag, 4)) == [("x.<parts>[1]", "value")]
    assert differences(itertools.repeat(tag, 5), itertools.repeat("x", 5)) == [("x.<parts>[0]", "value")]


@pytest.mark.parametrize("tag", TAGS)
def test_a_text_that_looks_like_the_trees_own_comes_back(tag):
    saved = as_read(capture(x=itertools.repeat(tag, 5)).tree)
    live = {"x": itertools.repeat(tag, 7)}
    captured = capture(**live)
    assert list(Restore(saved, captured, Origins(captured)).run(live)["x"]) == [tag] * 5


def test_a_graft_copies_texts_and_renumbers_refs():
    source = as_read(capture(first=[], x=itertools.chain([1], "@"), y=itertools.repeat("@", 1)).tree)
    target = Tree()
    grafter = grafts.Grafts(source, target, {})
    chain, repeat = (target.nodes[grafter.graft(source.roots[name])[1]] for name in "xy")
    assert repeat["parts"] == ["@", 1]
    assert chain["k"] == "composed iterator"
    assert all(
        ref[1] < len(target.nodes) for node in target.nodes for ref in fields.refs_in("state", node.get("state")) if ref
    )


def test_names_of_a_loaders_attributes_are_no_refs():
    """A loader with threads whose attribute is called `t`: its node lists the names that are not compared."""
    nodes = [{"k": "object", "t": "__main__:Loader", "p": None, "s": "x", "beside": ["t"], "answers": ""}]
    sides = [
        Side(SimpleNamespace(meta=META, path=Path("/nowhere/checkpoint_0_0.h5")), Tree(nodes, [], {"x": ["@", 0]}))
        for _ in range(2)
    ]
    comparison = Comparison(*sides)
    comparison.run()
    assert comparison.num_differences == 0


def test_every_registered_handler_declares_fields_as_the_table_has_them():
    import detrain.adapters.numpy  # noqa: F401 - registers the handlers

    for kind, handler in registry._by_kind.items():
        fields.check(kind, handler.fields)


OBJECTS = {
    **{name: make("x") for name, make in HOLDERS.items()},
    "function": lambda x, *, y=1: x,
    "class": type("Local", (), {"a": 1}),
    "array": np.zeros((2, 3)),
    "view": np.zeros(6)[::2],
    "objects": np.array([[], {}], dtype=object),
    "row": np.zeros(1, [("a", int)])[0],
    "generator": (i for i in [1, 2]),
    "random": np.random.default_rng(1),
    "state": np.random.RandomState(1),
    "default": collections.defaultdict(list, a=[1]),
    "range": iter(range(5)),
    "numbers": bytearray(b"123"),
}


@pytest.mark.parametrize("obj", OBJECTS.values(), ids=OBJECTS)
def test_a_handler_writes_what_it_declares_and_what_the_walk_writes(obj):
    import detrain.adapters.numpy  # noqa: F401 - registers the handlers

    of_the_walk = {
        "k",
        "t",
        "p",
        "s",
        "array",
        "attrs",
        "slots",
        "class",
        "dict_of",
        "kept",
        "loud",
        "from",
        "within",
        "at",
    }
    for node in capture(x=obj).tree.nodes:
        handler = registry.handler_of_kind(node["k"])
        assert node.keys() - of_the_walk <= handler.fields.keys()
        for name, value in node.items():
            if handler.fields.get(name) is Holds.PLAIN and name in fields.FIELDS:
                assert not isinstance(value, list)  # a reader that has not loaded the handler would look for refs there


def test_a_declaration_that_contradicts_the_table_is_refused():
    class Contradicting(Handler):
        kind = "contradicting"
        fields = {"seq": Holds.ONE}

    with pytest.raises(TypeError, match=r"declares that its field 'seq' holds ONE, .* says LIST"):
        registry.register(Contradicting())
    assert registry.handler_of_kind("contradicting") is None


def test_a_new_name_for_refs_has_to_be_in_the_table():
    class New(Handler):
        kind = "new"
        fields = {"members": Holds.LIST}

    with pytest.raises(TypeError, match=r"'members' holds LIST, .* says PLAIN"):
        registry.register(New())
