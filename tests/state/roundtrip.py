"""A program in small, captured in the middle, written to a checkpoint file, read from it, and restored into a second life of itself.

All in one process, in milliseconds. A program has four parts: *definitions* (imports, classes, functions), *set-up*, a *loop* body that
changes something, and what comes *next*, which shows whether everything is where it was. A life runs the parts in a module called
`program`, which counts as the user's own; when it is over, its objects are collected, so that the next life begins as a new process does.

The judge is `describe`, which knows nothing of detrain: the variables of the restored life, and what becomes of them next, must look like
those of a life that nobody has captured.
"""

from __future__ import annotations

import functools
import gc
import io
import json
import linecache
import sys
import textwrap
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import detrain.adapters.numpy
import detrain.state.handlers.standard  # noqa: F401 - registers the handlers
from detrain.proof.comparison import Comparison, Side
from detrain.state import registry, user_code
from detrain.state.attributes import slot_descriptors
from detrain.state.captured import Captured
from detrain.state.census import Census
from detrain.state.restore import Origins, Restore
from detrain.state.retrace import Retracer
from detrain.state.tree import Tree
from detrain.state.walk import Walk
from detrain.store import checkpoint
from detrain.store.commit import commit
from detrain.store.meta import Meta
from tests.state.describing import describe

NAME = "program"
META = Meta(1, folder="/nowhere", entropy=[0, 0])


@dataclass(frozen=True)
class Program:
    """The four parts, as source.

    `anew`: it may as well be that the loop has made everything, and the set-up nothing. `alike`: what is restored looks to detrain's own
    comparison like what was saved.
    """

    definitions: str
    set_up: str
    loop: str
    next: str
    anew: bool = True
    alike: bool = True

    def made_by_the_loop(self) -> Program:
        """The same, but the set-up makes nothing: a restore has to build all of it."""
        return replace(self, set_up="", loop=f"{textwrap.dedent(self.set_up)}\n{textwrap.dedent(self.loop)}")


class Life:
    """One run of a program, in a module of its own."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self.module = types.ModuleType(NAME)
        sys.modules[NAME] = self.module
        for part in ("definitions", "set_up", "loop", "next"):
            code = self._code(part)
            user_code.user_code[code.co_filename] = code
        for part in ("definitions", "set_up"):
            self.run(part)

    def run(self, part: str) -> None:
        """Run one of the program's parts."""
        exec(self._code(part), vars(self.module))

    def _code(self, part: str) -> types.CodeType:
        return _compiled(getattr(self._program, part), part)

    @property
    def roots(self) -> dict[str, Any]:
        """The program's variables."""
        return {name: value for name, value in vars(self.module).items() if name not in user_code.PYTHONS_OWN}

    def put_back(self, restored: dict[str, Any]) -> None:
        """Let the variables be what a restore has made of them."""
        for name in self.roots.keys() - restored.keys():
            del vars(self.module)[name]
        vars(self.module).update(restored)

    def look(self, census: Census | None = None) -> Captured:
        """Capture it."""
        walk = Walk(census)
        for name, value in self.roots.items():
            walk.root(name, value)
        return walk.run()


@functools.cache
def _compiled(source: str, part: str) -> types.CodeType:
    source = textwrap.dedent(source)
    filename = f"/{NAME}/{part}.py"
    linecache.cache[filename] = len(source), None, source.splitlines(True), filename
    return compile(source, filename, "exec")


@contextmanager
def life(program: Program) -> Iterator[Life]:
    """A life, and its end: nothing that it has made is left behind."""
    before, is_user = dict(user_code.user_code), NAME in user_code.user_modules
    user_code.user_modules.add(NAME)
    made = Life(program)
    try:
        yield made
    finally:
        vars(made.module).clear()
        del made, sys.modules[NAME]
        user_code.user_code.clear()
        user_code.user_code.update(before)
        if not is_user:
            user_code.user_modules.discard(NAME)
        _forget_classes()
        gc.collect()
        gc.freeze()  # what is left are libraries that were loaded meanwhile: no garbage of the next life's


def _forget_classes() -> None:
    """What detrain knows of each class that it has met in this process; in a new one those of an earlier life are not there."""
    registry.forget_types()
    slot_descriptors.cache_clear()


@contextmanager
def as_a_new_process() -> Iterator[None]:
    """What the process holds already is nobody's garbage: looking for that of one life takes a millisecond instead of a hundred."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@dataclass(frozen=True)
class Seen:
    """What a judge sees of a life: its variables after the loop, and after what comes next."""

    at: Any
    after: Any


def judge(one: Life) -> Seen:
    """Look at a life that has come to its checkpoint, let it go on, and look again."""
    at = describe(one.roots)
    one.run("next")
    return Seen(at, describe(one.roots))


def never_captured(program: Program) -> Seen:
    """What the program does when it is left alone."""
    with life(program) as one:
        one.run("loop")
        return judge(one)


@dataclass(frozen=True)
class Saved:
    """A checkpoint that has been written and read again, the files beside it, and what became of the life that it was taken of."""

    header: checkpoint.Checkpoint
    tree: Tree
    files: dict[Path, bytes]
    seen: Seen


def saved(program: Program, path: Path, folder: Path) -> Saved:
    """Capture a life after its loop; `folder` is where it may have files."""
    with life(program) as one:
        census, retracer = Census(one.look()), Retracer()
        retracer.walk(one.roots, {}, census)
        one.run("loop")
        look_again(retracer, one, census)
        del retracer  # it knows the classes of this life
        looked = one.look(census).tree
        commit(path, looked, META)
        digests = [array.compute_digest() for array in looked.arrays]
        files = {file: file.read_bytes() for file in folder.iterdir()}
        seen = judge(one)
    _empty(folder)
    header, tree = checkpoint.load(path)
    assert digests == [array.compute_digest() for array in tree.arrays]
    return Saved(header, tree, files, seen)


def look_again(retracer: Retracer, one: Life, census: Census) -> None:
    """The walk along the route of an earlier one yields what a walk from anew does; and so does the next, where nothing has changed."""
    for _ in range(3):
        assert_same(retracer.walk(one.roots, {}, census).captured(), one.look(census))


def assert_same(one: Captured, other: Captured) -> None:
    """Two captures of one state tell the same, as JSON has it."""
    assert [type(obj) for obj in one.objects] == [type(obj) for obj in other.objects]
    # Where a handler makes an object to write it down, what lay at its address before means nothing; and whenever torch.fx is asked to
    # pickle a graph, it compiles it anew, under another name.
    mine, theirs = (
        [
            node if obj is its and "code" not in node else {k: v for k, v in node.items() if k not in ("from", "code")}
            for node, obj, its in zip(captured.tree.nodes, one.objects, other.objects, strict=True)
        ]
        for captured in (one, other)
    )
    assert json.dumps(mine) == json.dumps(theirs)
    assert json.dumps(one.tree.roots) == json.dumps(other.tree.roots)
    assert [list(captured.numbers.values()) for captured in (one, other)] == [list(range(len(one.numbers)))] * 2
    assert (list(one.paths), len(one.unfinished)) == (list(other.paths), len(other.unfinished))
    for mine, its in zip(one.tree.arrays, other.tree.arrays, strict=True):
        assert (mine.path, mine.label, mine.data.dtype.str) == (its.path, its.label, its.data.dtype.str)
        # The name ends with a number that goes up, and may have a digit more than before.
        is_named_anew = b"<eval_with_key>" in mine.data.tobytes() and b"<eval_with_key>" in its.data.tobytes()
        assert is_named_anew or mine.data.shape == its.data.shape
        assert is_named_anew or mine.data.tobytes() == its.data.tobytes()


@contextmanager
def restored(program: Program, taken: Saved, **options: Any) -> Iterator[Life]:
    """A second life, brought from the end of its set-up to the checkpoint."""
    with life(program) as one:
        live = one.look()
        for file, content in taken.files.items():
            _overwrite(file, content)
        one.put_back(Restore(taken.tree, live, Origins(live), **options).run(one.roots))
        del live  # it holds what the program may want to let die
        yield one


def differences(taken: Saved, one: Life) -> list[dict[str, Any]]:
    """What detrain's own comparison finds between a checkpoint and a life that has been restored from it.

    An iterator that is made again may be of another type, with the same elements left: one over a dict or a set runs over a list then,
    and of those that are used up one is like another.
    """
    found = Comparison(Side(taken.header, taken.tree), Side(taken.header, one.look().tree))
    found.run()
    return [one for one in found.differences if not _are_iterators(one)]


def _are_iterators(difference: dict[str, Any]) -> bool:
    return difference["what"] == "type" and all(
        str(difference[side]).endswith(("iterator", ":reversed")) for side in "ab"
    )


def _overwrite(file: Path, content: bytes) -> None:
    """In place: who has it open sees it."""
    file.touch()
    with open(file, "r+b", buffering=0) as raw:
        raw.truncate(0)
        io.FileIO.write(raw, content)


def _empty(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()
