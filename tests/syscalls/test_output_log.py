"""What a process prints is noted as it goes by, and nothing else is."""

from __future__ import annotations

from pathlib import Path

from detrain.world import output_log

NOTING = """
import ctypes, os, sys
from pathlib import Path
from detrain.world import preload
batches = ctypes.c_uint64(0)
assert preload.record_output(Path({path!r}), {most}, batches)
"""


def noted(path: Path) -> list[tuple[int, str]]:
    return [(line.stream, line.text) for line in output_log.read(path)]


def test_both_streams_are_noted_and_arrive(python, tmp_path: Path) -> None:
    path = tmp_path / "printed"
    code = NOTING.format(path=str(path), most=10_000)
    out = python(
        code + "print('one', flush=True); os.write(1, b'two\\n'); os.dup2(1, 2); sys.stderr.write('three\\n')\n"
        "open(os.devnull, 'w').write('four\\n')"
    )
    assert out == "one\ntwo\nthree\n"
    assert noted(path) == [(1, "one"), (1, "two"), (2, "three")]


def test_each_line_has_the_number_of_the_batch_that_ran(python, tmp_path: Path) -> None:
    path = tmp_path / "printed"
    code = NOTING.format(path=str(path), most=10_000)
    python(code + "for batches.value in (1, 2, 2**40): print('line', flush=True)")
    assert [line.batches for line in output_log.read(path)] == [1, 2, 2**40]


def test_marks_stand_between_what_was_printed(python, tmp_path: Path) -> None:
    path = tmp_path / "printed"
    code = NOTING.format(path=str(path), most=10_000)
    python(
        code + "mark = preload.mark_printed\n"
        "print('first', flush=True)\nassert mark('{\"checkpoint\":1}')\nprint('done again', flush=True)\n"
        'mark(\'{"attempt":2,"is_resuming":true,"immediate":[]}\')\nprint(\'set up again\', flush=True)\n'
        "mark('{\"resumed\":1}')\nprint('again', flush=True)"
    )
    assert [line.text for line in output_log.read(path)] == ["first", "again"]


def test_children_print_for_themselves(python, tmp_path: Path) -> None:
    path = tmp_path / "printed"
    code = NOTING.format(path=str(path), most=10_000)
    out = python(
        code + "import subprocess\nif os.fork() == 0:\n    print('child', flush=True); os._exit(0)\nos.wait()\n"
        "subprocess.run(['echo', 'other'])\nprint('parent', flush=True)"
    )
    assert out == "child\nother\nparent\n"
    assert noted(path) == [(1, "parent")]


def test_a_file_that_comes_to_have_the_number_gets_nothing(python, tmp_path: Path) -> None:
    """A script may close every descriptor, and open files of its own."""
    path, mine = tmp_path / "printed", tmp_path / "mine"
    code = NOTING.format(path=str(path), most=10_000)
    python(
        code
        + f"os.closerange(3, 1000)\nfor _ in range(400): os.open({str(mine)!r}, os.O_WRONLY | os.O_CREAT)\nprint('mine', flush=True)"
    )
    assert mine.read_bytes() == b""
    assert noted(path) == []


def test_no_more_is_noted_than_was_allowed(python, tmp_path: Path) -> None:
    path = tmp_path / "printed"
    code = NOTING.format(path=str(path), most=120)
    out = python(code + "for n in range(20): os.write(1, b'line\\n')")
    assert out.count("\n") == 20
    assert 3 <= len(noted(path)) <= 5
    assert path.stat().st_size <= 120
