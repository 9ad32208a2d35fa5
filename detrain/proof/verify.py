"""`detrain verify`: a run is done again, part by part, and proved against its checkpoints and its ledger."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from detrain.errors import DetrainError, ResumeRefused, UsageError
from detrain.loops import instfile
from detrain.proof.sandbox import NoSandbox
from detrain.proof.segments import Segment, segments_of
from detrain.proof.worker import Order
from detrain.session.goal import Goal, Key
from detrain.store import ledger
from detrain.store.checkpoint import Checkpoint
from detrain.store.directory import RunDirectory, write_atomically
from detrain.store.record import Invocation, RunRecord
from detrain.world.machine import Machine

#: How a part came out; only the first proves it.
SAME, DIFFERENT, BROKEN, UNPROVED = "same", "different", "could not be done again", "not all compared"


@contextlib.contextmanager
def open_run(path: Path) -> Iterator[tuple[RunDirectory, RunRecord, list[Checkpoint], list[str]]]:
    """A run that can be done again, and does not go on meanwhile: directory, record, checkpoints, what is wrong with others.

    Raises `DetrainError`.
    """
    directory = RunDirectory(Path(os.path.realpath(path)))
    record = directory.read_record()
    if record is None:
        raise UsageError(f"{path} is no run directory")
    if record.command is None:
        raise ResumeRefused(
            f"{path} is a run of an earlier version of detrain, which did not record how to start it again"
        )
    with directory.shared():
        yield directory, record, *_usable(directory, record)


def _usable(directory: RunDirectory, record: RunRecord) -> tuple[list[Checkpoint], list[str]]:
    checkpoints, bad = directory.read_checkpoints()
    sources = checkpoints[0].meta.sources if checkpoints else _sources(directory, record)
    changed = instfile.changed_sources(sources)
    if changed:
        raise ResumeRefused(f"the source has changed since the run: {', '.join(changed)}. It cannot be repeated")
    return checkpoints, [str(error) for error in bad]


def _sources(directory: RunDirectory, record: RunRecord) -> dict[str, str]:
    path = directory.path / "inst.info"
    return instfile.read(path, Path(record.script).parent).sources if path.exists() else {}


def verify(
    path: Path, jobs: int | None = None, on_done: Callable[[dict[str, Any]], None] = lambda _: None
) -> dict[str, Any]:
    """Do every part of a run again, `jobs` at a time (default: as many as there are cores for the run's threads).

    Returns `same`, `segments` (each with `start`, `until`, `result`, `num_compared` of `num_records`, and where they
    differ, `difference`), `damaged`, `jobs`. Raises `DetrainError` where nothing can be done again at all.
    """
    with open_run(path) as (directory, record, checkpoints, damaged):
        parts = segments_of(
            checkpoints, ledger.read(directory.path / "ledger"), is_finished=bool(directory.finished_at())
        )
        if not parts:
            raise ResumeRefused(f"{path} holds no checkpoint and nothing in its ledger: there is nothing to prove")
        count = jobs or _cores_for(record)

        def do(number: int) -> dict[str, Any]:
            part = parts[number]
            row = {"number": number, "start": part.names[0], "until": part.names[1], "num_records": part.num_records}
            try:
                row.update(_judge(part, order_for(directory, record, checkpoints, part)))
            except OtherArguments as error:
                row.update(result=UNPROVED, num_compared=0, seconds=0.0, why=str(error))
            on_done(row)
            return row

        with ThreadPoolExecutor(count) as pool:
            rows = list(pool.map(do, range(len(parts))))
        return {
            "same": not damaged and all(row["result"] == SAME for row in rows),
            "run": str(directory.path),
            "is_finished": bool(directory.finished_at()),
            "attempts": record.attempts,
            "jobs": count,
            "damaged": damaged,
            "segments": rows,
        }


def keep(path: Path, result: dict[str, Any]) -> None:
    """Leave the result in the run directory, for the report."""
    text = json.dumps({**result, "when": time.strftime("%Y-%m-%d %H:%M:%S %z")}, indent=1)
    write_atomically(path / "verified.json", text + "\n")


def order_for(
    directory: RunDirectory, record: RunRecord, checkpoints: list[Checkpoint], part: Segment,
    operators: tuple[Key | None, Key] | None = None,
) -> Order:  # fmt: skip
    """What a worker needs to do a part again. Raises `OtherArguments`."""
    invocation = _invocation_of(part, record, checkpoints)
    _check_invocation(part, invocation, checkpoints, ledger.read(directory.path / "ledger"))
    known = [one.name for one in checkpoints if part.start is not None and one.sequence <= part.start.sequence]
    goal = Goal(operators=operators, is_whole=part.is_whole)
    if part.until is not None:
        goal = replace(goal, position=part.until.meta.position, is_exhausted=part.until.meta.is_exhausted)
    return Order(
        str(directory.path), record.with_invocation(invocation), goal, part.start.name if part.start else None,
        part.until.name if part.until else None, known,
    )  # fmt: skip


class OtherArguments(ResumeRefused):
    """A part begins where the run went on with other arguments; what was taken over there is not found again."""


def _invocation_of(part: Segment, record: RunRecord, checkpoints: list[Checkpoint]) -> Invocation:
    """The arguments with which a part was done: those of the checkpoint that comes next."""
    since = part.start.sequence if part.start is not None else 0
    ahead = [part.until] if part.until is not None else [one for one in checkpoints if one.sequence > since]
    return min(ahead, key=lambda one: one.sequence).meta.invocation if ahead else record.invocation


def _check_invocation(
    part: Segment, invocation: Invocation, checkpoints: list[Checkpoint], done: ledger.Ledger
) -> None:
    first = part.start.meta.batches if part.start is not None else -1
    end = part.until.meta.batches if part.until is not None else float("inf")
    within = [one for one in done.changed_at if first < one < end]
    if within:
        raise OtherArguments(
            f"the run went on with other arguments after batch {within[0]}, within it, and no checkpoint is left of that moment"
        )
    if part.start is None:
        return
    passed = {*part.start.meta.chain, part.start.name}
    for one in checkpoints:
        if one.name in passed and one.meta.invocation != invocation:
            raise OtherArguments(
                f"the arguments were {one.meta.invocation} up to {one.name}, and {invocation} from there on: it is not proved "
                "that the run took the right values from them"
            )


def _judge(part: Segment, order: Order) -> dict[str, Any]:
    """Do a part again and say how it came out."""
    try:
        found = order.carry_out()
    except NoSandbox:
        raise  # so it is with every other part
    except DetrainError as error:
        return {"result": BROKEN, "num_compared": 0, "seconds": 0.0, "why": str(error)}
    row = {"num_compared": found["num_compared"], "seconds": found["seconds"], "files": found.get("files")}
    if found["difference"] is not None:
        return {**row, "result": DIFFERENT, "difference": found["difference"]}
    has_ended = found["status"] == 0 and (part.is_whole or found["is_stopped"])
    if not has_ended:
        return {**row, "result": BROKEN, "why": found["said"].strip() or f"it ended with status {found['status']}"}
    checkpoint = found.get("checkpoint")
    if part.until is not None:
        if checkpoint is None:
            return {**row, "result": BROKEN, "why": f"{part.until.name} was not taken again"}
        row["num_leaves"], row["notes"] = checkpoint["num_leaves"], checkpoint["notes"]
        if not checkpoint["same"]:
            return {
                **row,
                "result": DIFFERENT,
                "difference": {"leaf": checkpoint["differences"][0]["path"], "in": part.until.name},
            }
    elif found["num_compared"] < part.num_records or not (found["num_compared"] or part.start is not None):
        missing = part.num_records - found["num_compared"]
        why = (
            f"{missing} records of the ledger were not come to again"
            if missing > 0
            else "the ledger holds nothing of it"
        )
        return {**row, "result": UNPROVED, "why": why}
    return {**row, "result": SAME}


def _cores_for(record: RunRecord) -> int:
    machine = record.machine or Machine()
    threads = machine.variables.get("OMP_NUM_THREADS") or machine.processors
    return max(1, len(os.sched_getaffinity(0)) // max(1, int(str(threads).partition(",")[0])))


def format_result(result: dict[str, Any]) -> str:
    """The table, as a person reads it."""
    heads = ("segment", "from", "to", "records", "leaves", "seconds", "result")
    rows = [
        (
            str(row["number"]), row["start"], row["until"], _records(row),
            str(row.get("num_leaves", "")), f"{row['seconds']:.1f}", row["result"],
        )
        for row in result["segments"]
    ]  # fmt: skip
    widths = [max(len(line[column]) for line in [heads, *rows]) for column in range(len(heads))]
    lines = [
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in [heads, *rows]
    ]
    for row in result["segments"]:
        lines += _notes(row)
    lines += [f"damaged: {what}" for what in result["damaged"]]
    lines.append(_summary(result))
    return "\n".join(lines)


def _records(row: dict[str, Any]) -> str:
    """How many records were compared; of how many, where some were not."""
    compared, there = row["num_compared"], row["num_records"]
    return str(compared) if compared >= there else f"{compared} of {there}"


def _position(found: dict[str, Any]) -> str:
    return f"after batch {found['batches']} of the run (epoch {found['epoch']}, batch {found['batch']})"


def _notes(row: dict[str, Any]) -> list[str]:
    lines = []
    if "difference" in row:
        found = row["difference"]
        where = f"in {found['in']}" if "in" in found else _position(found)
        lines.append(f"segment {row['number']}: {where}, {found['leaf']} is not what the run had there")
    if "why" in row:
        lines.append(f"segment {row['number']} {row['result']}: {row['why']}")
    lines += [
        f"segment {row['number']}: note: not counted: {note} (original / repeated)" for note in row.get("notes", ())
    ]
    for path in (row.get("files") or {}).get("different", ()):
        lines.append(f"note: not counted: the script's file {path} came out with other bytes")
    return lines


def _summary(result: dict[str, Any]) -> str:
    rows = result["segments"]
    if not result["same"]:
        num_bad = sum(row["result"] != SAME for row in rows)
        return f"not proved: {num_bad} of {len(rows)} segments, {len(result['damaged'])} damaged checkpoints"
    compared = sum(row["num_compared"] for row in rows)
    checkpoints = sum("num_leaves" in row for row in rows)
    files = sum(len((row.get("files") or {}).get("same", ())) for row in rows)
    end = "to its end" if result["is_finished"] else "as far as it came"
    return (
        f"proved: the run was repeated {end}, in {len(rows)} segments; {compared} records of the ledger, {checkpoints} checkpoints and "
        f"{files} files of the script, as far as the last segment writes them, have the same bits"
    )
