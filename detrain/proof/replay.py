"""`detrain replay`: epochs of a run are done again with other lines in the script, and proved to be the same training.

What a script did not print can be seen afterwards: lines are added to a copy of it, and the epochs that matter are repeated from the
checkpoints before them, in a sandbox, in parallel. The ledger of the run says whether the training was the same. The idea is that of Flor
(Garcia et al., "Hindsight Logging for Model Training", VLDB 2021).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from detrain.errors import DetrainError, ResumeRefused, UsageError
from detrain.launch.patched import PatchedFile
from detrain.loops import alignment, instfile
from detrain.messages import counted
from detrain.proof import windows
from detrain.proof.sandbox import NoSandbox
from detrain.proof.segments import Segment
from detrain.proof.verify import BROKEN, DIFFERENT, SAME, UNPROVED, cores_for, open_run, order_for
from detrain.proof.windows import Part, Reach
from detrain.session.goal import Window
from detrain.store import ledger
from detrain.store.checkpoint import Checkpoint
from detrain.store.job import JobDirectory
from detrain.store.ledger import Ledger
from detrain.store.record import RunRecord


@dataclass(frozen=True)
class Wanted:
    """What is to be replayed, as the command line says it."""

    #: "epochs" or "batches", and which (`detrain.proof.windows.parse`).
    unit: str
    ranges: str
    #: Sources to run in place of the run's: `FILE`, in place of the script, or `NAME=FILE`.
    patches: Sequence[str] = ()
    #: Each range by one process.
    is_whole: bool = False


def replay(
    path: Path,
    wanted: Wanted,
    jobs: int | None = None,
    on_done: Callable[[dict[str, Any]], None] = lambda _: None,
    on_begin: Callable[[list[dict[str, Any]]], None] = lambda _: None,
) -> dict[str, Any]:
    """Repeat the wanted parts of a run, `jobs` at a time; `on_done` hears of each, in the order of the run.

    `on_begin` hears before that what is known of all of them: `window`, `start`, `until`, `epochs_before`.

    Returns `same`, `segments` (each with `window`, `start`, `epochs_before`, `until`, `result`, `num_compared`, `shown` and, where they
    differ, `difference`), `notes`, `seconds`, `seconds_in_run` (None where the ledger does not say), `batches`.
    Raises `DetrainError` where nothing can be replayed at all.
    """
    ranges = windows.parse(wanted.ranges, wanted.unit)
    began_s = time.monotonic()
    if JobDirectory(Path(os.path.realpath(path))).is_there:
        raise UsageError(f"{path} is a job of several ranks; `replay` repeats runs of one process only")
    with open_run(path) as (directory, record, checkpoints, damaged):
        done = ledger.read(directory.path / "ledger")
        info = _loops(directory.path, record)
        reach = windows.reach_of(done, checkpoints, _batch_loops(info))
        patched, notes = _patched(wanted.patches, record, checkpoints, info)
        chosen = list(_parts(wanted, windows.windows(ranges, wanted.unit, reach), checkpoints, info))
        count = min(jobs or cores_for(record, 1), len(chosen))
        planned = [_row_of(number, part) for number, part in enumerate(chosen)]
        on_begin(planned)

        def do(part: Part, row: dict[str, Any]) -> dict[str, Any]:
            window = replace(part.window, loop=_first_loop(info, patched))
            try:
                order = order_for(directory, record, checkpoints, done, _segment_of(part))
                order = replace(order, goal=_moved(replace(order.goal, window=window), patched), patched=patched)
                found = order.carry_out()
            except NoSandbox:
                raise  # so it is with every other part
            except DetrainError as error:
                return {**row, "result": BROKEN, "why": str(error)}
            return {**row, **_judge(part, found, reach)}

        rows = []
        with ThreadPoolExecutor(count) as pool:
            for row in pool.map(do, chosen, planned):
                on_done(row)
                rows.append(row)
    num_batches, took_s = _in_run(chosen, reach, done)
    return {
        "same": all(row["result"] == SAME for row in rows),
        "run": str(directory.path),
        "patched": [one.path for one in patched],
        "jobs": count,
        "notes": notes,
        "damaged": damaged,
        "segments": rows,
        "batches": num_batches,
        "seconds": time.monotonic() - began_s,
        "seconds_in_run": took_s,
    }


def _parts(
    wanted: Wanted, chosen: Iterable[Window], checkpoints: Sequence[Checkpoint], info: instfile.InstInfo
) -> Iterator[Part]:
    for window in chosen:
        yield from windows.parts_of(window, checkpoints, _batch_loops(info), is_whole=wanted.is_whole)


def _segment_of(part: Part) -> Segment:
    return Segment(part.start, part.until, is_whole=False, num_records=0)


def _row_of(number: int, part: Part) -> dict[str, Any]:
    """What is known of a part before it is repeated."""
    return {
        "number": number, "window": str(part.window), "unit": part.window.unit, "start": _segment_of(part).names[0],
        "until": part.until.name if part.until is not None else "", "shown": [], "num_compared": 0, "seconds": 0.0,
        "epochs_before": part.epochs_before,
    }  # fmt: skip


def _in_run(parts: Sequence[Part], reach: Reach, done: Ledger) -> tuple[int, float | None]:
    """Of these parts: batches, and how long the run took for them; None where the ledger does not say."""
    spans = [span for part in parts if (span := reach.batches_of(part.window)) is not None]
    took_s = [windows.seconds_in_run(done, *span) for span in spans]
    is_known = len(spans) == len(parts) and any(took_s)
    return sum(end - begin for begin, end in spans), sum(one or 0.0 for one in took_s) if is_known else None


# --- the source --------------------------------------------------------------------------------------------------------------


def _loops(folder: Path, record: RunRecord) -> instfile.InstInfo:
    path = folder / "inst.info"
    if not path.exists():
        raise ResumeRefused(f"{folder} has no inst.info: the run has not trained, or was made by an earlier detrain")
    return instfile.read(path, Path(record.script).parent)


def _batch_loops(info: instfile.InstInfo) -> set[tuple[str, int]]:
    return {(name, line) for name, lines in info.parts().items() for line, part in lines.items() if part == "batch"}


def _first_loop(info: instfile.InstInfo, patched: Iterable[PatchedFile]) -> tuple[str, int]:
    """File and line of the outermost loop, where it is now."""
    if not info.nests:
        return "", 0
    first = info.nests[0][0]
    name = os.path.normpath(first.file_name)
    return name, _line_now(name, first.line_no, patched)


def _line_now(filename: str, line: int, patched: Iterable[PatchedFile]) -> int:
    for one in patched:
        if os.path.normpath(one.path) == os.path.normpath(filename):
            return one.loops.get(line, line)
    return line


def _moved(goal: Any, patched: Sequence[PatchedFile]) -> Any:
    """The goal with the lines of now."""
    if goal.position is None:
        return goal
    position = [loop._replace(line=_line_now(loop.filename, loop.line, patched)) for loop in goal.position]
    return replace(goal, position=position)


def _patched(
    given: Sequence[str], record: RunRecord, checkpoints: Sequence[Checkpoint], info: instfile.InstInfo
) -> tuple[list[PatchedFile], list[str]]:
    """The sources to run in place of the run's, and what is to be said of them."""
    sources = {**info.sources, **(checkpoints[0].meta.sources if checkpoints else {})}
    found, notes = [], []
    for text in given:
        name, _, other = text.rpartition("=")
        path = _source(name, sources, record)
        try:
            before, now = Path(path).read_bytes(), Path(other).read_bytes()
        except OSError as error:
            raise UsageError(f"--with {text}: {error.filename} cannot be read: {error.strerror}") from None
        aligned = alignment.align(before, now, other)
        lines = info.parts().get(os.path.normpath(path), {})
        loops = {line: aligned.loop(line, path, other) for line in lines}
        decoded = now.decode("utf-8", "surrogateescape")
        found.append(PatchedFile(path, decoded, aligned.patch(), loops))
        if aligned.gone:
            plural = "s" if len(aligned.gone) > 1 else ""
            notes.append(
                f"{other} changes or leaves out line{plural} {alignment.shown(aligned.gone)} of {os.path.basename(path)}; what set-up "
                "code makes is replaced by the checkpoint's state, so that only what happens after it counts"
            )
    return found, notes


def _source(name: str, sources: Iterable[str], record: RunRecord) -> str:
    """The file of the run that is meant: the script, or one of the user's modules."""
    if not name:
        if os.path.isfile(record.script):
            return record.script
        raise UsageError(
            f"the run is of the module {record.script}: say which file is replaced, as --with train.py=patched.py"
        )
    wanted = os.path.realpath(name)
    known = {os.path.normpath(one) for one in sources}
    exact = [one for one in known if os.path.realpath(one) == wanted]
    ending = [one for one in known if one.endswith(f"{os.sep}{os.path.normpath(name)}")]
    found = exact or ending
    if len(found) != 1:
        listed = ", ".join(sorted(known)) or "none"
        raise UsageError(
            f"--with {name}=…: {'no' if not found else 'more than one'} source of the run is meant by {name}; it has {listed}"
        )
    return found[0]


# --- how it came out -----------------------------------------------------------------------------------------------------------


def _judge(part: Part, found: dict[str, Any], reach: Reach) -> dict[str, Any]:
    row = {key: found[key] for key in ("num_compared", "seconds", "shown")}
    if found["difference"] is not None:
        return {**row, "result": DIFFERENT, "difference": found["difference"]}
    if found["status"] or not found["is_stopped"]:
        last = [line for shown in found["shown"] for line in shown["err"].strip().splitlines()][-1:]
        ended = f"status {found['status']}: {' '.join(last)}" if found["status"] else f"before {part.window} had ended"
        why = found["said"].strip() or f"the script ended {'with ' if found['status'] else ''}{ended}".removesuffix(
            ": "
        )
        return {**row, "result": BROKEN, "why": why}
    if part.until is not None:
        checkpoint = found.get("checkpoint")
        if checkpoint is None:
            return {**row, "result": BROKEN, "why": f"{part.until.name} was not taken again"}
        row["num_leaves"] = checkpoint["num_leaves"]
        if not checkpoint["same"]:
            leaf = checkpoint["differences"][0]["path"]
            return {**row, "result": DIFFERENT, "difference": {"leaf": leaf, "in": part.until.name}}
        return {**row, "result": SAME}
    last = found.get("compared_until", -1)
    if last < found.get("end", 0):
        if not found["num_compared"]:
            why = f"the ledger has no record that could be compared; it ends after batch {reach.batches} of the run"
            return {**row, "result": UNPROVED, "why": why}
        row["note"] = f"the ledger ends within it: behind batch {last} of the run nothing could be compared"
    return {**row, "result": SAME}


def format_begin(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """What is said before a replay of these parts."""
    for row in rows:
        before = f", with {counted(row['epochs_before'], 'epoch')} before it" if row["epochs_before"] else ""
        yield f"replaying {row['window']} from {row['start']}{before}"


def format_row(row: dict[str, Any]) -> Iterator[str]:
    """What is said of one part when it is done."""
    until = f", up to {row['until']}" if row["until"] else ""
    yield f"{row['window']}, from {row['start']}{until}: {row['result']} ({counted(row['num_compared'], 'record')}, {row['seconds']:.1f} s)"
    if "difference" in row:
        found = row["difference"]
        where = (
            f"in {found['in']}"
            if "in" in found
            else f"after batch {found['batches']} of the run (epoch {found['epoch']}, batch {found['batch']})"
        )
        yield f"{row['window']}: {where}, {found['leaf']} is not what the run had there: the replayed training is another one"
    if row["epochs_before"]:
        yield (
            f"{row['window']}: note: {counted(row['epochs_before'], 'epoch')} before it had to be repeated, as the run has kept no later "
            "checkpoint; `--keep N` keeps more"
        )
    if "note" in row:
        yield f"{row['window']}: note: {row['note']}"
    if "why" in row:
        yield f"{row['window']} {row['result']}: {row['why']}"


def format_summary(result: dict[str, Any]) -> Iterator[str]:
    """What is said at the end."""
    yield from (f"note: {note}" for note in result["notes"])
    yield from (f"damaged, and not used: {what}" for what in result["damaged"])
    rows, took_s = result["segments"], result["seconds_in_run"]
    in_run = f"; in the run these {result['batches']} batches took {took_s:.2g} s" if took_s is not None else ""
    yield f"replayed in {result['seconds']:.1f} s, by {counted(result['jobs'], 'process', 'processes')} at a time{in_run}"
    if result["same"]:
        compared = counted(sum(row["num_compared"] for row in rows), "record")
        num_checkpoints = sum("num_leaves" in row for row in rows)
        checkpoints = f" and {counted(num_checkpoints, 'checkpoint')}" if num_checkpoints else ""
        yield f"proved: {compared} of the ledger{checkpoints} have the same bits as in the run"
    else:
        num_bad = sum(row["result"] != SAME for row in rows)
        yield f"not proved: {num_bad} of {counted(len(rows), 'part')}"


def status_of(result: dict[str, Any]) -> int:
    """Exit status: 0 the same, 1 another training, 2 it could not be done or compared."""
    if result["same"]:
        return 0
    return 1 if any(row["result"] == DIFFERENT for row in result["segments"]) else 2
