"""What a replay decides before anything runs: ranges, which checkpoints to begin from, and which line is which."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from detrain.errors import UsageError
from detrain.launch import patched
from detrain.launch.patched import PatchedFile
from detrain.loops import alignment, instfile
from detrain.loops.instfile import InstInfo, NestLoop
from detrain.proof import replay, windows
from detrain.session.goal import Goal, Window
from detrain.state import patches
from detrain.store.checkpoint import Checkpoint
from detrain.store.ledger import Batch, Ledger
from detrain.store.meta import LoopPosition, Meta

BATCH_LOOPS = {("/train.py", 9)}
TRAIN = b"""\
import torch

def step(x):
    return x

class Net:
    pass

for epoch in range(6):
    for x in loader:
        loss = step(x)
    print(epoch)
"""


# --- ranges ---


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("3", [(3, 3)]),
        ("3-5", [(3, 5)]),
        ("0-", [(0, None)]),
        ("2,5-7", [(2, 2), (5, 7)]),
        ("5-7, 2,3", [(2, 3), (5, 7)]),
        ("1-4,2-9,6-", [(1, None)]),
        ("4-,6", [(4, None)]),
    ],
)
def test_ranges(text: str, found: list[tuple[int, int | None]]) -> None:
    assert windows.parse(text, "epochs") == found


@pytest.mark.parametrize("text", ["", "x", "-3", "3-2", "1..2", "3-5-6", "2,,3"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--epochs"):
        windows.parse(text, "epochs")


def test_batches_count_from_one() -> None:
    with pytest.raises(UsageError, match="count from 1"):
        windows.parse("0-3", "batches")


def ledger_of(num_epochs: int, size: int) -> Ledger:
    """A record at each header of the batch loop, one more at the end; a batch takes a second."""
    records = [Batch(epoch * size + batch, 0, epoch + 1, batch) for epoch in range(num_epochs) for batch in range(size)]
    found = {one.key: one for one in records}
    end = Batch(num_epochs * size, 1, num_epochs, size)
    found[end.key] = end
    times = [(100.0 + number, number) for number in range(1, num_epochs * size + 1)]
    return Ledger(found, {}, [{"attempt": 1, "batches": 0, "at": 100.0}], [], times=times)


def test_windows_end_where_the_run_does() -> None:
    reach = windows.reach_of(ledger_of(6, 10))
    assert windows.windows([(2, 2), (4, None)], "epochs", reach) == [Window("epochs", 2, 2), Window("epochs", 4, 5)]
    assert reach.batches_of(Window("epochs", 2, 3)) == (20, 40)
    assert reach.batches_of(Window("epochs", 4, 5)) == (40, 60)
    assert reach.batches_of(Window("batches", 7, 12)) == (6, 12)
    assert windows.Reach({0: 0, 4: 40}, 60).batches_of(Window("epochs", 2, 3)) is None
    assert windows.reach_of(Ledger({(1, 0): Batch(1, 0, 3, 1)}, {}, [], []), ALL, BATCH_LOOPS).begins == {1: 10, 2: 0}
    with pytest.raises(UsageError, match="came to epoch 5"):
        windows.windows([(4, 6)], "epochs", reach)
    with pytest.raises(UsageError, match="came to batch 60"):
        windows.windows([(61, 61)], "batches", reach)
    with pytest.raises(UsageError, match="holds no batch"):
        windows.windows([(0, None)], "epochs", windows.reach_of(Ledger({}, {}, [], [])))


def test_what_a_kill_made_twice_counts_once() -> None:
    ledger = ledger_of(2, 10)
    assert windows.seconds_in_run(ledger, 10, 20) == pytest.approx(10)
    # Killed after batch 15 and resumed at 12, an hour later.
    ledger.times = [(100.0 + number, number) for number in range(1, 16)] + [
        (3700.0 + number, 12 + number) for number in range(1, 9)
    ]
    ledger.attempts.append({"attempt": 2, "batches": 12, "at": 3700.0})
    assert windows.seconds_in_run(ledger, 10, 20) == pytest.approx(10)
    assert windows.seconds_in_run(Ledger({}, {}, [], []), 10, 20) is None


# --- where to begin ---


def checkpoint(sequence: int, epochs: int, batches: int, in_epoch: int = 0, *, is_end: bool = False) -> Checkpoint:
    """At the header of epoch `epochs`, or with `in_epoch` within the one before."""
    loops = [LoopPosition("/train.py", 8, 0, epochs)]
    if in_epoch:
        loops.append(LoopPosition("/train.py", 9, 0, in_epoch))
    meta = Meta(sequence, loops, is_exhausted=is_end, epochs=epochs, batches=batches, batch_in_epoch=in_epoch)
    return Checkpoint(Path(f"checkpoint_{sequence}.h5"), meta)


#: Ten batches an epoch: before epoch 1, in it, before 3, in 3, before 5, and at the end of 6.
ALL = [
    checkpoint(1, 1, 10),
    checkpoint(2, 2, 14, 4),
    checkpoint(3, 3, 30),
    checkpoint(4, 4, 36, 6),
    checkpoint(5, 5, 50),
    checkpoint(6, 6, 60, is_end=True),
]


def parts(unit: str, first: int, last: int, **options: bool) -> list[tuple[int, int, int, int]]:
    """Number of the checkpoint to begin from and of that to end with (0: none), first and last."""
    found = windows.parts_of(Window(unit, first, last), ALL[::-1], BATCH_LOOPS, **options)
    return [
        (
            part.start.sequence if part.start else 0,
            part.until.sequence if part.until else 0,
            part.window.first,
            part.window.last,
        )
        for part in found
    ]


def test_epochs_begin_from_the_latest_checkpoint_before_them() -> None:
    assert parts("epochs", 0, 0) == [(0, 1, 0, 0)]
    assert parts("epochs", 1, 1) == [(1, 0, 1, 1)]
    assert parts("epochs", 2, 2) == [(2, 3, 2, 2)]  # from within epoch 1: epoch 2 is whole
    assert parts("epochs", 5, 5) == [(5, 6, 5, 5)]


def test_a_range_falls_into_parts_of_whole_epochs() -> None:
    assert parts("epochs", 0, 5) == [(0, 1, 0, 0), (1, 0, 1, 1), (2, 3, 2, 2), (3, 0, 3, 3), (4, 5, 4, 4), (5, 6, 5, 5)]
    assert parts("epochs", 0, 5, is_whole=True) == [(0, 6, 0, 5)]
    few = windows.parts_of(Window("epochs", 1, 5), [ALL[2]], BATCH_LOOPS)
    assert [(part.start, part.window.first, part.window.last) for part in few] == [(None, 1, 2), (ALL[2], 3, 5)]
    assert [part.epochs_before for part in few] == [1, 0]


def test_batches_begin_from_the_latest_checkpoint_before_the_first() -> None:
    assert parts("batches", 14, 14) == [(1, 0, 14, 14)]
    assert parts("batches", 15, 20) == [(2, 0, 15, 20)]
    assert parts("batches", 31, 36) == [(3, 0, 31, 36)]
    assert parts("batches", 25, 30) == [(2, 3, 25, 30)]


def test_a_goal_with_a_window_survives_its_journey() -> None:
    goal = Goal(window=Window("epochs", 3, 5, ("/train.py", 8)), position=[LoopPosition("/train.py", 8, 0, 6)])
    assert Goal.decode(json.loads(json.dumps(goal.encode()))) == goal
    assert str(goal.window) == "epochs 3 to 5"
    assert str(Window("batches", 4, 4)) == "batch 4"


# --- which line is which ---


def test_added_lines_move_the_loops() -> None:
    now = TRAIN.replace(b"import torch\n", b"import torch\nimport json\n").replace(
        b"        loss = step(x)\n", b"        loss = step(x)\n        seen = loss\n"
    )
    found = alignment.align(TRAIN, now, "patched.py")
    assert [found.loop(line, "train.py", "patched.py") for line in (9, 10)] == [10, 11]
    assert found.gone == []
    assert found.lines[12] == 14
    assert found.added == {"<module>": {"json", "seen"}}


def test_a_loop_that_is_changed_left_out_or_there_twice_is_refused() -> None:
    for old, new in (
        (b"for epoch in range(6)", b"for epoch in range(7)"),
        (b"for epoch in range(6):", b"if epoch := 1:"),
        (b"    print(epoch)\n", b"    for x in loader:\n        print(x)\n"),
        (b"for epoch in range(6)", b"for again in range(2):\n  for epoch in range(6)"),
    ):
        found = alignment.align(TRAIN, TRAIN.replace(old, new), "patched.py")
        gone = next(line for line in (9, 10) if line not in found.loops)
        with pytest.raises(UsageError, match=rf"patched.py has no loop, or several.*train.py:{gone} \(for "):
            found.loop(gone, "train.py", "patched.py")


def test_loops_with_other_headers_are_told_by_their_order_where_that_is_asked_for() -> None:
    now = b"import sys\n" + TRAIN.replace(b"for epoch in range(6)", b"for epoch in range(7)")
    found = alignment.align(TRAIN, now, "train.py", has_other_headers=True)
    assert [found.loops.get(line) for line in (9, 10)] == [10, 11]
    for old, new in (
        (b"for epoch in range(6):", b"if epoch := 1:"),
        (b"for epoch in range(6)", b"for again in range(2):\n  for epoch in range(6)"),
        (b"for epoch in range(6):", b"while epoch := 1:"),
    ):
        found = alignment.align(TRAIN, TRAIN.replace(old, new), "train.py", has_other_headers=True)
        assert not {9, 10} <= found.loops.keys()


def test_a_loop_is_not_told_by_its_order_where_another_one_is_known_to_stand() -> None:
    before = b"for a in x:\n    pass\nfor b in y:\n    pass\n"
    found = alignment.align(before, b"for b in y:\n    pass\nfor c in z:\n    pass\n", "t.py", has_other_headers=True)
    assert found.loops == {3: 1}


def test_changed_lines_are_those_of_the_second_version() -> None:
    assert alignment.changed_lines(b"a\nb\nc\n", b"a\nnew\nb\nC\n") == [2, 4]
    assert alignment.changed_lines(b"a\nb\nc\n", b"a\nc\n") == [2]
    assert alignment.changed_lines(b"a\nb\n", b"a\nb\n") == []


def test_other_loops_of_the_same_header_elsewhere_do_not_matter() -> None:
    now = b"def other():\n    for epoch in range(6):\n        pass\n" + TRAIN.replace(b"range(6)", b"range( 6 )")
    found = alignment.align(TRAIN, now, "patched.py")
    assert found.loop(9, "train.py", "patched.py") == 12
    assert found.gone == [9]


def test_a_source_that_python_cannot_read_is_refused_with_its_line() -> None:
    with pytest.raises(UsageError, match=r"patched.py, line 2: Python cannot read it"):
        alignment.align(TRAIN, b"x = 1\nfor:\n", "patched.py")


def test_functions_keep_their_names_and_what_is_added_is_known() -> None:
    now = TRAIN.replace(
        b"def step(x):\n", b"@decorated\ndef step(x):\n    global count\n    count = norm = x.y\n    x.extra = 1\n"
    ).replace(b"    pass\n", b"    def stats(self): return 1\n")
    found = alignment.align(TRAIN, now, "patched.py")
    assert found.lines[3] == 3
    assert found.added == {
        "step": {"norm"},
        "<module>": {"count"},
        "Net": {"stats"},
        "Net.stats": {"self"},
    }
    assert found.attributes == {"extra"}


def test_a_patch_tells_an_attempt_where_things_were() -> None:
    namespace: dict[str, object] = {}
    code = compile("\n\ndef step(x):\n    return x\n\ndef new(): pass\n", "/train.py", "exec")
    exec(code, namespace)
    patch = patches.Patch({3: 1, 4: 2}, {"step": frozenset({"x"})}, frozenset({"extra"}))
    assert patches.Patch.decode(json.loads(json.dumps(patch.encode()))) == patch
    step, new = (namespace[name].__code__ for name in ("step", "new"))  # type: ignore[attr-defined]
    assert not patches.are_used()
    try:
        patches.use({"/./train.py": patch})
        assert (patches.first_line(step), patches.first_line(new)) == (1, -6)
        assert (patches.line_now("/train.py", 2), patches.line_now("/train.py", 5)) == (4, 0)
        assert patches.line_now("/other.py", 5) == 5
        assert patches.added_in(step) == {"x"}
        assert patches.is_patched("/train.py")
        hooks = {"_forward_hooks": {0: print}, "_other_hooks": {0: print}, "extra": 1, "weight": 2}
        saved = {"_forward_hooks": ["@", 0], "_other_hooks": ["@", 1], "weight": 2}
        assert patches.left_alone(hooks, saved, [{"items": []}, {"items": [[0, 1]]}]) == {"_forward_hooks", "extra"}
    finally:
        patches.use({})
    assert patches.first_line(step) == 3


def test_a_run_directory_gets_the_lines_of_now(tmp_path: Path) -> None:
    script, folder = tmp_path / "train.py", tmp_path / "run"
    folder.mkdir()
    script.write_bytes(TRAIN)
    nest = [NestLoop(str(script), 9, "epoch"), NestLoop(str(script), 10, "batch")]
    instfile.write(folder / "inst.info", InstInfo([nest], {str(script): instfile.digest(TRAIN)}), tmp_path)
    readings = [["train.py:3", 0, 7], ["monotonic train.py:11 > time.py:5", 0, 8], ["train.py:12", 0, 9]]
    (folder / "answers.log").write_text("".join(f"{json.dumps(one)}\n" for one in readings))
    now = TRAIN.replace(b"import torch\n", b"import torch\nimport json\n").replace(b"print(epoch)", b"print(epoch, 1)")
    found = alignment.align(TRAIN, now, "patched.py")
    one = PatchedFile(str(script), now.decode(), found.patch(), {line: found.loop(line, "", "") for line in (9, 10)})
    assert PatchedFile.decode(json.loads(json.dumps(one.encode()))) == one
    patched.put([one], folder, script)
    info = instfile.read(folder / "inst.info", tmp_path)
    instfile.check_lines(folder / "inst.info", info)
    assert [loop.line_no for loop in info.nests[0]] == [10, 11]
    assert instfile.changed_sources(info.sources) == []
    kept = [json.loads(line) for line in (folder / "answers.log").read_text().splitlines()]
    assert kept == [["train.py:4", 0, 7], ["monotonic train.py:12 > time.py:5", 0, 8]]
    try:
        patched.read(folder)
        chain = [SimpleNamespace(meta=Meta(1, [LoopPosition(str(script), 9, 0, 3)]))]
        patched.move(chain)  # type: ignore[arg-type]
        assert chain[0].meta.position == [LoopPosition(str(script), 10, 0, 3)]
    finally:
        patches.use({})


# --- what is said ---


def test_before_a_replay_it_is_said_where_each_part_begins_and_what_is_repeated_before_it() -> None:
    rows = [
        {"window": "epoch 2", "start": "the beginning", "epochs_before": 2},
        {"window": "epoch 9", "start": "checkpoint_9_0.h5", "epochs_before": 0},
    ]
    assert list(replay.format_begin(rows)) == [
        "replaying epoch 2 from the beginning, with 2 epochs before it",
        "replaying epoch 9 from checkpoint_9_0.h5",
    ]
