"""What is known of where objects stood, once some of them are gone."""

import pytest

import detrain.state.handlers.standard  # noqa: F401 - registers the handlers
from detrain.state.census import Census
from detrain.state.tree import Node
from detrain.state.walk import Walk

HERE = "no other place is named"


class Thing:
    """An object of the script's, which can be referred to weakly."""


def marked(census, obj, path):
    node = Node(t=f"{type(obj).__module__}:{type(obj).__qualname__}")
    census.mark(obj, node, path)
    return node.get("from", HERE)


def census_of(**roots):
    walk = Walk()
    for name, obj in roots.items():
        walk.root(name, obj)
    return Census(walk.run())


def test_what_has_moved_is_recognised():
    thing = Thing()
    census = census_of(a=thing)
    assert marked(census, thing, "a") == HERE
    assert marked(census, thing, "b") == "a"
    assert marked(census, Thing(), "a") == ""


@pytest.mark.parametrize("make", [Thing, lambda: (one for one in "x")], ids=["object", "generator"])
def test_an_address_that_is_used_again_is_not_the_object_that_is_gone(make):
    first = make()
    census, address = census_of(inner=first, outer=Thing()), id(first)
    del first
    others = []
    while id(others[-1] if others else None) != address:
        others.append(make())  # each new one has another address until the old one's turn comes
        assert len(others) < 1000
    assert marked(census, others[-1], "outer") == ""
    assert marked(census, others[-1], "elsewhere") == HERE
