"""Variables of frames that run or are suspended, and generators that are only moved."""

import itertools
import sys
import types

import pytest

import detrain.state.load_handlers  # noqa: F401 - registers the handlers
from detrain.errors import RestoreError
from detrain.state import frames, iterators
from detrain.state.tree import Array
from tests.state import roundtrip


def test_variables_of_a_running_function_are_set_and_deleted():
    def run(kept, changed, gone, shared, dropped):
        def inner():
            return shared

        frame = sys._getframe()
        before = frames.read_locals(frame)
        frames.write_locals(frame, {"changed": [2], "shared": "new"}, gone=["gone", "dropped", "never"])
        here = {"kept": kept, "changed": changed, "shared": inner()}
        if kept is None:
            del gone
            dropped = 1
            return lambda: dropped
        return before, here, frames.read_locals(frame)

    before, here, after = run(1, 2, 3, 4, 5)
    assert {name: before[name] for name in ("kept", "changed", "gone", "shared")} == {"kept": 1, "changed": 2, "gone": 3, "shared": 4}
    assert here == {"kept": 1, "changed": [2], "shared": "new"}
    assert "gone" not in after
    assert "dropped" not in after


def test_variable_that_the_code_deletes_nowhere_stays():
    def run(gone):
        frame = sys._getframe()
        frames.write_locals(frame, {}, gone=["gone"])
        return gone

    assert run(3) == 3


def test_globals_of_a_module_are_written():
    module = types.ModuleType("m")
    code = compile("import sys\nframe = sys._getframe()\nwrite(frame, {'a': 2}, ['b'])\nis_module = level(frame)", "m.py", "exec")
    vars(module).update(a=1, b=1, write=frames.write_locals, level=frames.is_module_level)
    exec(code, vars(module))
    assert (module.a, module.is_module, hasattr(module, "b")) == (2, True, False)


def test_cells_of_a_running_function_are_those_of_its_closures():
    def run():
        count = 1
        free = outer

        def inner():
            return count, free, outer

        found = frames.cells(sys._getframe())
        return found, dict(zip(inner.__code__.co_freevars, inner.__closure__, strict=True))

    outer = "x"
    found, cells = run()
    assert found.keys() == cells.keys()
    assert all(found[name] is cells[name] for name in cells)


@pytest.mark.parametrize(
    ("iterator", "count", "done"),
    [
        (iter(range(5)), 3, 3), (iter(range(5)), 9, 5), (enumerate("abc"), 2, 2), (zip("ab", range(3), strict=False), 5, 2),
        (itertools.count(), 4, 4), (itertools.islice(iter([1, 2, 3]), 2), 7, 2), ((n for n in range(3)), 2, 2),
        (map(str, range(3)), 2, None),
        ((n + 1 for n in range(3)), 2, None), (iter({1: 2}.items()), 1, None),
    ],
)  # fmt: skip
def test_steps_of_what_merely_counts(iterator, count, done):
    assert iterators.took_steps(iterator, count) == done


def hands_on(loader):
    for batch in loader:  # noqa: UP028 - `yield from` is another code
        yield batch


def looks(loader):
    for batch in loader:
        yield batch + 1


@pytest.mark.parametrize(("generator", "passes"), [(hands_on, True), (looks, False), (lambda: None, False)])
def test_generator_that_yields_what_it_takes(generator, passes):
    assert iterators.passes_through(generator.__code__) is passes


def test_listeners_are_told_of_blind_steps_and_of_their_end(monkeypatch):
    told = []
    monkeypatch.setattr(iterators, "on_blind_steps", [told.append])
    with iterators.stepping(False):
        assert told == []
    with iterators.stepping(True):
        assert told == [True]
    assert told == [True, False]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    made = tmp_path / "files"
    made.mkdir()
    monkeypatch.chdir(made)
    return made


def resume_of(definitions, before, after, loop, folder):
    """What a restore says where the definitions are others than those of the checkpoint."""
    program = roundtrip.Program(definitions + before, "g = f(4)", loop, "")
    taken = roundtrip.saved(program, folder.parent / "checkpoint_0_0.h5", folder)
    changed = roundtrip.Program(definitions + after, "g = f(4)", loop, "")
    with roundtrip.restored(changed, taken) as one:
        return type(one.roots["g"]).__name__, list(one.roots["g"])


def test_generator_whose_code_has_changed_is_refused(folder):
    with pytest.raises(RestoreError, match="is not what it was"):
        resume_of("def f(n):\n", "    for i in range(n): yield i", "    for i in range(n): yield i * n - 1", "next(g)", folder)


def test_generator_that_fails_on_the_way_is_named(folder):
    with pytest.raises(RestoreError, match="failed on the way"):
        resume_of(
            "ok = True\ndef f(n):\n    for i in range(n):\n        yield check(i)\n    yield 'end'\n",
            "def check(i): return i", "def check(i): raise ValueError(i)", "[next(g) for _ in range(5)]", folder,
        )  # fmt: skip


def test_generators_in_turn(folder):
    program = roundtrip.Program(
        "def inner(n):\n    for i in range(n): yield i\n"
        "def f():\n    for part in [inner(2), inner(3), inner(4)]:\n        for x in part: yield x",
        "g = f()", "[next(g) for _ in range(4)]", "rest = list(g)", anew=False,
    )
    taken = roundtrip.saved(program, folder.parent / "checkpoint_0_0.h5", folder)
    with roundtrip.restored(program, taken) as one:
        one.run("next")
        assert one.roots["rest"] == [2, 0, 1, 2, 3]


def test_every_leaf_of_a_tree_has_a_path(folder):
    program = roundtrip.Program(
        "import numpy as np\nclass C:\n    __slots__ = ('s',)\nclass I(int): pass",
        "", "a = np.arange(3); l = [1, [2.5]]; d = {'x': 'y', 3: None}; c = C(); c.s = 7; i = I(9); t = 5; r = slice(1, 2)", "",
    )
    taken = roundtrip.saved(program, folder.parent / "checkpoint_0_0.h5", folder)
    found = dict(taken.tree.leaves())
    assert isinstance(found.pop("a"), Array)
    assert {name: found[name] for name in ("l[0]", "l[1][0]", "d.x", "d[3]", "c.s", "i", "t")} == {
        "l[0]": 1, "l[1][0]": 2.5, "d.x": "y", "d[3]": None, "c.s": 7, "i": 9, "t": 5,
    }  # fmt: skip
