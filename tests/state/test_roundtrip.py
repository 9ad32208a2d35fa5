"""Captured in the middle, written, read and restored, a program goes on as if nothing had been; in one process, milliseconds each."""

import os

import pytest

from detrain.errors import RestoreError, ResumeRefused
from detrain.state import registry
from tests.state import roundtrip
from tests.state.programs import (
    callables,
    classes,
    containers,
    generators,
    iterators,
    numpy_arrays,
    objects,
    references,
)

THEMES = (containers, iterators, generators, callables, classes, objects, references, numpy_arrays)
PROGRAMS = {name: program for theme in THEMES for name, program in theme.PROGRAMS.items()}
ANEW = {name: program.made_by_the_loop() for name, program in PROGRAMS.items() if program.anew}
#: What a restore does not bring back, and why.
KNOWN = {"dict, with nan as a key": "a float in a checkpoint has no identity, and NaN is found by nothing else"}


def each(programs):
    """As parameters."""
    return [
        pytest.param(
            program, id=name, marks=[pytest.mark.xfail(reason=KNOWN[name], strict=True)] if name in KNOWN else []
        )
        for name, program in programs.items()
    ]


pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # programs may leave files open


@pytest.fixture(scope="module", autouse=True)
def _as_a_new_process():
    with roundtrip.as_a_new_process():
        yield


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where a program may have files."""
    made = tmp_path / "files"
    made.mkdir()
    monkeypatch.chdir(made)
    monkeypatch.setattr(os, "fsync", lambda _: None)  # nobody is killed here
    return made


def check(program, folder):
    expected = roundtrip.never_captured(program)
    roundtrip._empty(folder)
    taken = roundtrip.saved(program, folder.parent / "checkpoint_0_0.h5", folder)
    assert taken.seen == expected, "to be captured has changed the program"
    with roundtrip.restored(program, taken) as one:
        differences = roundtrip.differences(taken, one) if program.alike else []
        seen = roundtrip.judge(one)
    assert seen.at == expected.at
    assert seen.after == expected.after
    assert not program.alike or differences == []


@pytest.mark.parametrize("program", each(PROGRAMS))
def test_what_the_set_up_has_made_is_brought_to_the_checkpoint(program, folder):
    check(program, folder)


@pytest.mark.parametrize("program", each(ANEW))
def test_what_the_loop_has_made_is_made_again(program, folder):
    check(program, folder)


#: What the loop has made and cannot be made again, and what is said when the program uses it.
UNMADE = {
    "a generator": ("def f(l): yield from l", "g = f(list('ab')); next(g)", "next(g)", "suspended generator"),
    "a memory map": ("import mmap", "m = mmap.mmap(-1, 8)", "m[0]", "made by the script"),
    "a hash": ("import hashlib", "h = hashlib.md5(b'x')", "h.digest()", "can only be compared"),
    "a thread": ("import threading", "t = threading.Thread(target=print)", "t.name", "the process that made it"),
    "a command": ("import subprocess", "c = subprocess.Popen(['true']); c.wait()", "c.pid", "started in the loop"),
    "a module of its own": ("import types", "m = types.ModuleType('nowhere'); m.x = 1", "m.x", "cannot be imported"),
    "a logger that no name leads to": ("import logging", "log = logging.Logger('own')", "log.info('x')", "nobody's"),
    "a view of a part": ("", "b = bytearray(b'abcd'); v = memoryview(b)[1:3]", "v[0]", "a view of a part"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNMADE)
def test_what_cannot_be_made_again_fails_when_it_is_used_and_says_why(name, folder):
    definitions, loop, use, why = UNMADE[name]
    program = roundtrip.Program(definitions, "", loop, f"x = {use}")
    taken = roundtrip.saved(program, folder.parent / "checkpoint_0_0.h5", folder)
    with roundtrip.restored(program, taken) as one, pytest.raises(RestoreError, match=why):
        one.run("next")


#: What a restore refuses: definitions, set-up, loop, and the refusal.
REFUSED = {
    "a hash that the loop has moved on": ("import hashlib", "h = hashlib.md5(b'x')", "h.update(b'y'); h2 = 1", "cannot be set"),
    # 7 and 15 want the same slot, and the later one came to stand before it; what NaN hashes to is no number that a file can hold.
    "a set whose order nobody can make again": ("", "s = set()", "s.add(7); s.add(15); s.add(float('nan'))", "iteration order"),
    "groups inside a generator": (
        "import itertools\ndef f(x):\n    for k, g in itertools.groupby(x): yield k", "g = f('aabbcc')", "next(g); next(g)",
        "cannot be set to the saved position",
    ),
    "a file that is gone": ("import os", "f = None", "f = open('x', 'w'); f.write('a'); f.flush(); os.remove('x')", "is gone"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_exact_is_refused_and_named(name, folder):
    program = roundtrip.Program(*REFUSED[name][:3], "")
    with pytest.raises(RestoreError, match=REFUSED[name][3]):  # noqa: PT012 - the one or the other
        taken = roundtrip.saved(program, folder.parent / "checkpoint_0_0.h5", folder)
        loud = [node["kept"] for node in taken.tree.nodes if node.get("loud")]
        if loud:
            raise RestoreError(loud[0])
        with roundtrip.restored(program, taken):
            pass


#: Kinds that no program in small has: what they are, and who tests them.
ELSEWHERE = {
    "beside": "is no object: `tests.session` has it",
    "log thread": "needs TensorBoard: `test_log_writers`",
    "log queue": "needs tensorboardX: `test_log_writers`",
    "proxy of a process": "needs a process of its own",
    "asyncio future": "`test_machinery`",
    "lmdb": "needs LMDB: `test_types`",
    "lmdb transaction": "needs LMDB: `test_types`",
    "coroutine": "is only named: below",
    "unrestored": "below",
    "address": "below",
}


def test_every_kind_of_object_that_is_captured_has_a_program(folder):
    seen = set()
    for program in PROGRAMS.values():
        with roundtrip.life(program) as one:
            one.run("loop")
            seen |= {node["k"] for node in one.look().tree.nodes}
            one.run("next")  # closes its files
        roundtrip._empty(folder)
    own = ("detrain.state.", "detrain.adapters.numpy")
    kinds = {kind for kind, handler in registry._by_kind.items() if type(handler).__module__.startswith(own)}
    assert kinds - seen == set(ELSEWHERE)


def test_suspended_coroutine_is_named(folder):
    program = roundtrip.Program("async def f(): pass\nasync def g(): yield 1", "c = f(); a = g()", "pass", "c.close()")
    taken = roundtrip.saved(program, folder.parent / "checkpoint_0_0.h5", folder)
    assert [node["k"] for node in taken.tree.nodes if node.get("loud")] == ["coroutine", "coroutine"]


def test_what_an_earlier_resume_could_not_make_again_stays_unmade(folder):
    program = roundtrip.Program("def f(l): yield from l", "", "g = f([1, 2]); next(g)", "next(g)")
    taken = roundtrip.saved(program, folder.parent / "checkpoint_0_0.h5", folder)
    with roundtrip.restored(program, taken) as one:
        kinds = {node["k"]: node for node in one.look().tree.nodes}
        assert "earlier resume" in kinds["unrestored"]["kept"]


def test_address_of_an_object_stands_for_the_object(folder):
    program = roundtrip.Program(
        "class K: pass",
        "k = K(); d = {}",
        "d[id(k)] = [id(k)]; s = {id(k)}",
        "found = list(d) == d[id(k)] == list(s) == [id(k)]",
    )
    taken = roundtrip.saved(program, folder.parent / "checkpoint_0_0.h5", folder)
    with roundtrip.restored(program, taken) as one:
        one.run("next")
        assert one.roots["found"]


def test_pickled_leaf_is_refused_where_none_is_allowed(folder):
    program = roundtrip.Program("import datetime", "d = None", "d = datetime.datetime(2024, 1, 2)", "pass")
    taken = roundtrip.saved(program, folder.parent / "checkpoint_0_0.h5", folder)
    with pytest.raises(ResumeRefused, match="--no-pickle"), roundtrip.restored(program, taken, allows_pickle=False):
        pass
