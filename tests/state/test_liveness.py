"""Which variables are dead at a header, and that what a resume could not bring back of them does no harm."""

import sys
import textwrap
import types

import pytest

import detrain.state.handlers.standard  # noqa: F401 - registers the handlers
from detrain.state import liveness, user_code
from detrain.state.walk import Walk

#: A function's code, which calls `here()`: the names that are dead there, and those that are not.
FUNCTIONS = {
    "written first": ("for i in range(2):\n    here()\n    x = i\n    y = x", "x y", "i"),
    "read first": ("x = 0\nfor i in range(2):\n    here()\n    x = x + 1", "", "x"),
    "read behind the loop": ("for i in range(2):\n    x = i\n    here()\nreturn x", "", "x"),
    "written on one way only": ("x = 0\nfor i in range(2):\n    here()\n    if i:\n        x = 1\n    print(x)", "", "x"),
    "written on both ways": (
        "x = 0\nfor i in range(2):\n    here()\n    if i:\n        x = 1\n    else:\n        x = 2\n    print(x)", "x", "",
    ),
    "read by whom an exception is caught": (
        "x = 0\nfor i in range(2):\n    here()\n    try:\n        x = int(i)\n    except ValueError:\n        print(x)", "", "x",
    ),
    "written before what may fail": (
        "for i in range(2):\n    here()\n    x = 1\n    try:\n        i = int('a')\n    except ValueError:\n        print(x)", "x", "",
    ),
    "read in a finally": ("x = 0\ntry:\n    for i in range(2):\n        here()\n        x = i\nfinally:\n    print(x)", "", "x"),
    "deleted": ("x = 0\nfor i in range(2):\n    x = i\n    here()\n    del x", "", "x"),
    "deleted after it is written": ("for i in range(2):\n    here()\n    x = i\n    del x", "x", ""),
    "shared with a closure": ("x = 0\nf = lambda: x\nfor i in range(2):\n    here()\n    x = i", "f", "x"),
    "added to in place": ("x = []\nfor i in range(2):\n    here()\n    x += [i]", "", "x"),
    "read by a comprehension": ("x = 2\nfor i in range(2):\n    here()\n    y = [k + x for k in range(2)]\n    x = 3", "y", "x"),
    "by name": ("x = 0\nfor i in range(2):\n    here()\n    x = 1\n    print(locals())", "", "x i"),
    "with a while": ("x, n = 0, 3\nwhile n:\n    here()\n    n, x = n - 1, n", "x", "n"),
    "unpacked": ("for i in range(2):\n    here()\n    a, (b, *c) = 1, (2, 3)\n    print(a, b, c)", "a b c", ""),
    "walrus": ("for i in range(2):\n    here()\n    if (x := i) > 0:\n        print(x)", "x", ""),
    "of a with": ("import io\nfor i in range(2):\n    here()\n    with io.StringIO() as f:\n        f.write('a')", "f", "io"),
    "behind a nested loop that may be empty": (
        "x = 0\nfor i in range(2):\n    here()\n    for k in range(i):\n        x = k\n    print(x)", "k", "x",
    ),
    "by match": ("x = 0\nfor i in range(2):\n    here()\n    match i:\n        case x:\n            print(x)", "x", ""),
}  # fmt: skip


def _dead_in(source):
    found = []
    namespace = {"here": lambda: found.append(liveness.dead_variables(sys._getframe(1))), "print": lambda *_: None}
    exec(compile(source, "script", "exec"), namespace)
    return namespace, found


@pytest.mark.parametrize("name", FUNCTIONS)
def test_dead_is_what_is_written_before_it_is_read_on_every_way(name):
    body, dead, alive = FUNCTIONS[name]
    namespace, found = _dead_in(f"def function():\n{textwrap.indent(body, '    ')}")
    namespace["function"]()
    assert found
    for one in found:
        assert set(dead.split()) <= one
        assert not set(alive.split()) & one


#: The code of a module: names that are dead, and names that are not.
MODULES = {
    "written first": ("for i in range(2):\n    here()\n    x = i", "x", ""),
    "read by a function": ("def f():\n    return x\nfor i in range(2):\n    here()\n    x = i", "", "x"),
    "read by a method of a class in a function": (
        "def f():\n    class K:\n        def g(self):\n            return x\nfor i in range(2):\n    here()\n    x = i", "", "x",
    ),
    "a local variable of a function of the same name": (
        "def f():\n    x = 1\n    return x\nfor i in range(2):\n    here()\n    x = i", "x", "",
    ),
    "an attribute of the same name": ("def f(a):\n    return a.x\nfor i in range(2):\n    here()\n    x = i", "x", ""),
    "by name, in a function": ("def f():\n    return globals()\nfor i in range(2):\n    here()\n    x = i", "", "x"),
    "a function that is not called any more": ("def f():\n    return 1\nx = f()\nfor i in range(2):\n    here()\n    print(x)", "f", "x"),
}  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_a_global_is_dead_if_nothing_else_reads_it(name):
    source, dead, alive = MODULES[name]
    code = compile(source, "script", "exec")
    _, found = _dead_in(source)
    read = liveness.read_elsewhere(code, [code])
    for one in found:
        names = frozenset() if read is None else one - read
        assert set(dead.split()) <= names
        assert not set(alive.split()) & names


def test_another_module_of_the_script_may_read_it():
    code = compile("x = 1", "script", "exec")
    other = compile("import script\nprint(script.x)", "other", "exec")
    assert "x" in liveness.read_elsewhere(code, [code, other])


class Refusing:
    """Holds what cannot be captured: a type of C that says nothing of its state."""

    def __init__(self):
        self.core = types.SimpleNamespace(made=iter(lambda: 1, 2))


class Noticed(Refusing):
    def __del__(self):
        """Does something."""


@pytest.fixture
def own(monkeypatch):
    monkeypatch.setattr(user_code, "user_modules", {"__main__", __name__})


def _walk(roots, dead):
    walk = Walk()
    for name, value in roots.items():
        walk.root(name, value)
    return walk.run(dead).tree


def _uncapturable():
    import zlib

    return zlib.compressobj()  # says nothing of its state


def _is_refused(tree):
    return any(node.get("loud") for node in tree.nodes)


def test_what_a_dead_variable_alone_holds_is_not_refused(own):
    assert _is_refused(_walk({"x": _uncapturable()}, {}))
    tree = _walk({"w": [1.0]}, {"x": {"a": [_uncapturable()]}, "y": [2]})
    assert not _is_refused(tree)
    (kept,) = [node for node in tree.nodes if "kept" in node]
    assert "writes this variable before it reads it" in kept["kept"]
    assert tree.roots.keys() == {"w", "x", "y"}
    assert len(tree.nodes) == 3


def test_what_somebody_else_holds_as_well_is(own):
    shared = _uncapturable()
    assert _is_refused(_walk({"w": [shared]}, {"x": shared}))


def test_what_is_noticed_when_it_is_dropped_is(own):
    made = Noticed()
    made.core = _uncapturable()
    assert _is_refused(_walk({}, {"x": made}))
    import socket

    with socket.socket() as connection:
        assert _is_refused(_walk({}, {"x": connection}))


def test_what_a_weak_reference_watches_is(own):
    import weakref

    class Watched:
        def __init__(self):
            self.core = _uncapturable()

    watched = Watched()
    assert not _is_refused(_walk({}, {"x": watched}))
    assert _is_refused(_walk({"r": [weakref.ref(watched)]}, {"x": watched}))


def test_what_comes_after_one_that_is_left_out_is_whole(own):
    array = __import__("numpy").arange(3)
    tree = _walk({"w": [1]}, {"x": [_uncapturable(), array.copy()], "y": [array, {"a": 1}]})
    assert not _is_refused(tree)
    assert [one.path for one in tree.arrays] == ["y[0]"]
    assert tree.nodes[tree.roots["y"][1]]["seq"][0][0] == "@"


def test_a_generator_leaves_out_what_is_dead_where_it_stands(own):
    def images(paths):
        for path in paths:
            opened = [_uncapturable()]
            size = len(path + str(opened))
            yield size

    running = images(["a", "bb"])
    next(running)
    tree = _walk({"g": running}, {})
    assert not _is_refused(tree)
    assert {name for name, _ in tree.nodes[tree.roots["g"][1]]["locals"]} == {"paths", "path", "opened", "size"}

    def reads_it_again(paths):
        opened = _uncapturable()
        for path in paths:
            yield len(path)
            opened.compress(b"")

    running = reads_it_again(["a", "bb"])
    next(running)
    assert _is_refused(_walk({"g": running}, {}))
