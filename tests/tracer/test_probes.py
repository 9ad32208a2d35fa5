"""Probes count every loop and change nothing else; on every supported Python."""

import ast
import dis
import importlib.util
import types
from pathlib import Path

import pytest
from detrain.tracer.probes import Probes

#: Source with the iterations that each of its loops makes, in the order of the lines.
LOOPS = {
    "for": ("for i in range(3):\n    pass\n", [3]),
    "for over nothing": ("for i in ():\n    pass\n", [0]),
    "for with else": ("for i in range(2):\n    continue\nelse:\n    i = 9\n", [2]),
    "for over a comprehension": ("for i in [j for j in range(4)]:\n    pass\n", [4]),
    "targets of any shape": (
        "class A: pass\na = A()\n"
        "for (x, y), z in zip(enumerate('ab'), 'cd'):\n    for a.b in [1]:\n        for q, in [(1,)]:\n            pass\n",
        [2, 2, 2],
    ),
    "while": ("k = 0\nwhile k < 3:\n    k += 1\n", [3]),
    "while with and, or": ("k = 0\nwhile k < 3 and (k != 7 or k > 9):\n    k += 1\n    if k == 1: continue\n", [3]),
    "while True": ("k = 0\nwhile True:\n    k += 1\n    if k > 4:\n        break\n", [5]),
    "while True on one line": ("k = iter([1, 2, 0])\nwhile True:\n    if not next(k): break\n", [3]),
    "while in while True": (
        "k = 0\nwhile True:\n    while k < 5:\n        k += 1\n        if k == 4: continue\n    break\n",
        [1, 5],
    ),
    "loop in finally": (
        "n = 0\nfor i in range(3):\n    try:\n        if i == 1: continue\n    finally:\n        for j in range(2): n += 1\n",
        [3, 6],
    ),
    "loop in with": ("import contextlib\nwith contextlib.nullcontext():\n    for i in range(2):\n        pass\n", [2]),
    "loops of a function, a closure, a generator": (
        "def f():\n    def g():\n        for i in range(3):\n            yield i\n    for i in g():\n        pass\nf()\n",
        [3, 3],
    ),
    "match": (
        "for i in range(3):\n    match i:\n        case 1:\n            while i:\n                i -= 1\n",
        [3, 1],
    ),
}


def probed(source, filename="train.py"):
    probes = Probes()
    return probes, probes.compile(ast.parse(source), filename)


@pytest.mark.parametrize("shape", LOOPS)
def test_probe_counts_the_iterations(shape):
    source, expected = LOOPS[shape]
    probes, code = probed(source)
    exec(code, {})
    assert [site.ticks for _, site in sorted(probes.sites.items())] == expected


@pytest.mark.parametrize("shape", LOOPS)
def test_variables_end_as_without_probes(shape):
    source, _ = LOOPS[shape]
    plain, mine = {}, {}
    exec(compile(source, "train.py", "exec"), plain)
    exec(probed(source)[1], mine)
    atoms = (int, str, float, tuple)
    assert {k: v for k, v in mine.items() if isinstance(v, atoms)} == {
        k: v for k, v in plain.items() if isinstance(v, atoms)
    }


def test_iteration_begins_anew_with_each_entry():
    probes, code = probed(
        "seen = []\nfor e in range(2):\n    for b in range(3):\n        seen.append(site.iteration)\n"
    )
    namespace = {"site": probes.sites["train.py", 3]}
    exec(code, namespace)
    assert namespace["seen"] == [0, 1, 2, 0, 1, 2]


def test_site_knows_what_a_for_loop_iterates_over():
    probes, code = probed("for i in data:\n    pass\n")
    data = [1, 2]
    exec(code, {"data": data})
    assert probes.sites["train.py", 1].iterator is data


def test_traceback_speaks_of_the_lines_of_the_file():
    _, code = probed("k = 0\nwhile k < 3:\n    k += 1\n    for i in range(2):\n        1 / 0\n")
    with pytest.raises(ZeroDivisionError) as caught:
        exec(code, {})
    assert [entry.lineno for entry in caught.traceback][-1] + 1 == 5


def test_no_marker_line_is_left_in_the_code():
    _, code = probed("k = 0\nwhile k < 3:\n    k += 1\nwhile True:\n    break\n")
    assert max(line for _, _, line in code.co_lines() if line) <= 5


def all_codes(code):
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from all_codes(constant)


def test_functions_without_loops_are_left_as_they_are():
    source = "def f(x):\n    return [i for i in x]\nfor i in range(2):\n    f([i])\n"
    function = next(one for one in all_codes(probed(source)[1]) if one.co_name == "f")
    plain = next(one for one in all_codes(compile(source, "train.py", "exec")) if one.co_name == "f")
    assert function.co_code == plain.co_code


@pytest.mark.parametrize(
    "module",
    ["argparse", "difflib", "textwrap", "tokenize", "json.decoder", "csv", "heapq", "random", "asyncio.base_events"],
)
def test_real_modules_can_be_probed_and_give_the_same_answers(module):
    path = Path(importlib.util.find_spec(module).origin)
    probes = Probes()
    code = probes.compile(ast.parse(path.read_bytes()), str(path))
    assert len(probes.sites) > 2
    for one in all_codes(code):
        list(dis.get_instructions(one))
    if module == "difflib":
        found = types.ModuleType("difflib")
        exec(code, found.__dict__)
        import difflib

        a, b = ["one", "two", "three"], ["one", "three", "four"]
        assert list(found.ndiff(a, b)) == list(difflib.ndiff(a, b))
        assert sum(site.ticks for site in probes.sites.values()) > 10
