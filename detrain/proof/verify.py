"""`detrain verify`: a run is done again, part by part, and proved against its checkpoints and its ledger."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from detrain.errors import CheckpointError, DetrainError, ResumeRefused, UsageError
from detrain.loops import instfile
from detrain.messages import counted
from detrain.proof.sandbox import NoSandbox
from detrain.proof.segments import Segment, segments_of
from detrain.proof.worker import Order, carry_out
from detrain.session.goal import Goal, Key
from detrain.store import ledger
from detrain.store.checkpoint import Checkpoint
from detrain.store.directory import RunDirectory, write_atomically
from detrain.store.job import JobDirectory, Manifest
from detrain.store.record import Invocation, RunRecord
from detrain.world.machine import Machine

#: How a part came out; only the first proves it. Of several ranks' the one that stands last here is the part's.
SAME, UNPROVED, BROKEN, DIFFERENT = "same", "not all compared", "could not be done again", "different"
_BY_WEIGHT = (SAME, UNPROVED, BROKEN, DIFFERENT)


@dataclass(frozen=True)
class Repeatable:
    """What one process has done and can do again: of a run, or of one rank of a job."""

    directory: RunDirectory
    record: RunRecord
    checkpoints: list[Checkpoint]
    damaged: list[str]
    #: Names of the checkpoints that it is cut at.
    cuts: frozenset[str]
    #: The job that it is one of `size` ranks of; None if it trained alone.
    job: JobDirectory | None = None
    rank: int = 0
    size: int = 1

    @property
    def is_finished(self) -> bool:
        """True if the run, or the whole job, had come to its end."""
        return bool(self.directory.finished_at() if self.job is None else self.job.finished_at())

    @functools.cached_property
    def ledger(self) -> ledger.Ledger:
        """What the batches have done; read once for all parts."""
        return ledger.read(self.directory.path / "ledger", has_losses=False)

    def segments(self) -> list[Segment]:
        """The parts that it falls into."""
        whole = [one for one in self.checkpoints if one.name in self.cuts]
        return segments_of(whole, self.ledger, is_finished=self.is_finished)

    def order(self, part: Segment) -> Order:
        """What a worker needs to do a part again. Raises `OtherArguments` or `OtherSource`."""
        order = order_for(self.directory, self.record, self.checkpoints, self.ledger, part)
        return replace(order, job=str(self.job.path) if self.job is not None else "", rank=self.rank, size=self.size)


def _missing(job: JobDirectory, manifest: Manifest, rank: int) -> str:
    """What is wrong with a rank's part of a cut; "" if nothing is, or if its own header says it."""
    try:
        job.part(manifest, rank)
    except CheckpointError as error:
        return str(error)
    return ""


@contextlib.contextmanager
def open_all(path: Path) -> Iterator[list[Repeatable]]:
    """A run, or all ranks of a job. Raises `DetrainError`."""
    job = JobDirectory(Path(os.path.realpath(path)))
    with contextlib.ExitStack() as stack:
        if not job.is_there:
            directory, record, checkpoints, damaged = stack.enter_context(open_run(path))
            names = frozenset(one.name for one in checkpoints)
            yield [Repeatable(directory, record, checkpoints, damaged, names)]
            return
        size, here = job.size(), job.ranks_here()
        missing = sorted(set(range(size)) - set(here))
        if missing:
            raise ResumeRefused(
                f"{job.path} lacks the directories of ranks {', '.join(map(str, missing))}: all {size} ranks have to be repeated together"
            )
        unreadable: list[str] = []
        manifests = job.manifests.read(lambda error: unreadable.append(str(error)))
        missing_parts = {
            (rank, one.name): text for one in manifests for rank in range(size) if (text := _missing(job, one, rank))
        }
        cuts = frozenset(one.name for one in manifests) - {name for _, name in missing_parts}
        found = []
        for rank in range(size):
            directory, record, checkpoints, damaged = stack.enter_context(open_run(job.rank(rank).path, job))
            damaged = [f"rank {rank}: {text}" for text in damaged]
            damaged += [text for (number, _), text in missing_parts.items() if number == rank]
            damaged += [] if rank else unreadable
            found.append(Repeatable(directory, record, checkpoints, damaged, cuts, job, rank, size))
        yield found


@contextlib.contextmanager
def open_run(
    path: Path, job: JobDirectory | None = None
) -> Iterator[tuple[RunDirectory, RunRecord, list[Checkpoint], list[str]]]:
    """A run that can be done again, and does not go on meanwhile: directory, record, checkpoints, what is wrong with others.

    `job`: the job that it is a rank of. Raises `DetrainError`.
    """
    directory = RunDirectory(Path(os.path.realpath(path)))
    if job is None and JobDirectory(directory.path.parent).is_there:
        raise UsageError(
            f"{path} is one rank of a job, which cannot be repeated alone; name the job, {directory.path.parent}"
        )
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
        raise ResumeRefused(
            f"the source has changed since the run: {', '.join(changed)}. It can be repeated once that is put back"
        )
    return checkpoints, [str(error) for error in bad]


def _sources(directory: RunDirectory, record: RunRecord) -> dict[str, str]:
    path = directory.path / "inst.info"
    return instfile.read(path, Path(record.script).parent).sources if path.exists() else {}


def verify(
    path: Path,
    jobs: int | None = None,
    on_done: Callable[[dict[str, Any]], None] = lambda _: None,
    on_begin: Callable[[int, int], None] = lambda *_: None,
) -> dict[str, Any]:
    """Do every part of a run again, `jobs` at a time (default: as many as there are cores for the run's threads).

    `on_begin` is told how many parts there are, and how many are done at a time; `on_done` each part's row. Ranks of a job are repeated
    together, on this host. Returns `same`, `segments` (each with `start`, `until`, `result`, `num_compared` of `num_records`, and where
    they differ, `difference`), `damaged`, `jobs`, `ranks`.
    Raises `DetrainError` where nothing can be done again at all.
    """
    with open_all(path) as ranks:
        first, by_rank = ranks[0], [one.segments() for one in ranks]
        num_parts = max(map(len, by_rank))
        if not num_parts:
            raise ResumeRefused(f"{path} holds no checkpoint and nothing in its ledger: there is nothing to prove")
        for parts in by_rank:
            if (
                len(parts) == num_parts - 1 and not first.is_finished
            ):  # this rank's ledger has nothing behind the last cut
                parts.append(Segment(parts[-1].until if parts else None, None, is_whole=False, num_records=0))
        if any([one.names for one in parts] != [one.names for one in by_rank[0]] for parts in by_rank):
            raise ResumeRefused(
                f"{path}: the ranks do not have the same checkpoints, so they cannot be repeated together"
            )
        count = jobs or cores_for(first.record, first.size)
        on_begin(num_parts, min(count, num_parts))

        def do(number: int) -> dict[str, Any]:
            parts = [one[number] for one in by_rank]
            row = {
                "number": number,
                "start": parts[0].names[0],
                "until": parts[0].names[1],
                "num_records": sum(part.num_records for part in parts),
            }
            try:
                row.update(_judge_all(parts, [one.order(part) for one, part in zip(ranks, parts, strict=True)]))
            except (OtherArguments, OtherSource) as error:
                row.update(result=UNPROVED, num_compared=0, seconds=0.0, why=str(error))
            on_done(row)
            return row

        with ThreadPoolExecutor(count) as pool:
            rows = list(pool.map(do, range(num_parts)))
        damaged = [text for one in ranks for text in one.damaged]
        return {
            "same": not damaged and all(row["result"] == SAME for row in rows),
            "run": str(first.directory.path if first.job is None else first.job.path),
            "ranks": first.size,
            "is_finished": first.is_finished,
            "attempts": max(one.record.attempts for one in ranks),
            "jobs": count,
            "damaged": damaged,
            "segments": rows,
        }


def keep(path: Path, result: dict[str, Any]) -> None:
    """Leave the result in the run directory, for the report."""
    text = json.dumps({**result, "when": time.strftime("%Y-%m-%d %H:%M:%S %z")}, indent=1)
    write_atomically(path / "verified.json", text + "\n")


def order_for(
    directory: RunDirectory, record: RunRecord, checkpoints: list[Checkpoint], done: ledger.Ledger, part: Segment,
    operators: tuple[Key | None, Key] | None = None,
) -> Order:  # fmt: skip
    """What a worker needs to do a part again. Raises `OtherArguments` or `OtherSource`."""
    invocation = _invocation_of(part, record, checkpoints)
    _check_invocation(part, invocation, checkpoints, done)
    _check_source(part, record)
    known = [one.name for one in checkpoints if part.start is not None and one.sequence <= part.start.sequence]
    goal = Goal(operators=operators, is_whole=part.is_whole)
    if part.until is not None:
        goal = replace(goal, position=part.until.meta.position, is_exhausted=part.until.meta.is_exhausted)
    return Order(
        str(directory.path), record.with_invocation(invocation), goal, part.start.name if part.start else None,
        part.until.name if part.until else None, known,
    )  # fmt: skip


class OtherSource(ResumeRefused):
    """A part was trained by another version of the script."""


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


def _check_source(part: Segment, record: RunRecord) -> None:
    first = part.start.meta.batches if part.start is not None else 0
    later = [batches for batches in record.sources_changed_at if batches >= first]
    if later:
        raise OtherSource(
            f"the run went on with a changed source after batch {later[-1]}, and this part was trained, or begins, before that"
        )


def _judge_all(parts: list[Segment], orders: list[Order]) -> dict[str, Any]:
    """Do a part again, by all ranks together, and say how it came out."""
    try:
        found = carry_out(orders)
    except NoSandbox:
        raise  # so it is with every other part
    except DetrainError as error:
        return {"result": BROKEN, "num_compared": 0, "seconds": 0.0, "why": str(error)}
    rows = [_judge(part, one) for part, one in zip(parts, found, strict=True)]
    if len(rows) == 1:
        return rows[0]
    for rank, one in enumerate(rows):
        if "difference" in one:
            one["difference"]["rank"] = rank
        if "why" in one:
            one["why"] = f"rank {rank}: {one['why']}"
        one["notes"] = [f"rank {rank}: {note}" for note in one.get("notes", ())]
    # Of ranks that differ the one that did first: the others differ because of it.
    worst = max(rows, key=lambda one: (_BY_WEIGHT.index(one["result"]), -one.get("difference", {}).get("batches", 0)))
    together = {
        "num_compared": sum(one["num_compared"] for one in rows),
        "seconds": max(one["seconds"] for one in rows),
        "files": rows[0]["files"],
        "notes": [note for one in rows for note in one["notes"]],
    }
    if all("num_leaves" in one for one in rows):
        together["num_leaves"] = sum(one["num_leaves"] for one in rows)
    return {**worst, **together}


def _judge(part: Segment, found: dict[str, Any]) -> dict[str, Any]:
    """How a part came out that one process has done again."""
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


def cores_for(record: RunRecord, num_ranks: int) -> int:
    """How many such runs the cores allow at a time; of a job, with so many ranks each."""
    machine = record.machine or Machine()
    threads = machine.variables.get("OMP_NUM_THREADS") or machine.processors
    return max(1, len(os.sched_getaffinity(0)) // (num_ranks * max(1, int(str(threads).partition(",")[0]))))


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
        rank = f" rank {found['rank']}," if "rank" in found else ""
        lines.append(f"segment {row['number']}:{rank} {where}, {found['leaf']} is not what the run had there")
    if "why" in row:
        lines.append(f"segment {row['number']} {row['result']}: {row['why']}")
    lines += [
        f"segment {row['number']}: note: not counted: {note} (original / repeated)" for note in row.get("notes", ())
    ]
    for path in (row.get("files") or {}).get("different", ()):
        lines.append(
            f"note: not counted: the script's file {path} came out with other bytes than lie there now; "
            "another run may have written it since"
        )
    return lines


def _what(result: dict[str, Any]) -> str:
    num_ranks = result.get("ranks", 1)
    return "the run was" if num_ranks == 1 else f"the job of {num_ranks} ranks was"


def _summary(result: dict[str, Any]) -> str:
    rows = result["segments"]
    if not result["same"]:
        num_bad = sum(row["result"] != SAME for row in rows)
        if not result["damaged"] and all(row["result"] in (SAME, UNPROVED) for row in rows):
            others = f"; the other {len(rows) - num_bad} have the same bits" if num_bad < len(rows) else ""
            return f"not proved: {num_bad} of {counted(len(rows), 'segment')} could not be compared to the end{others}"
        return f"not proved: {num_bad} of {len(rows)} segments, {len(result['damaged'])} damaged checkpoints"
    compared = counted(sum(row["num_compared"] for row in rows), "record")
    checkpoints = counted(sum("num_leaves" in row for row in rows), "checkpoint")
    same_files = [path for row in rows for path in (row.get("files") or {}).get("same", ())]
    files = f", and so have the script's files as it leaves them: {_named(same_files)}" if same_files else ""
    end = "to its end" if result["is_finished"] else "as far as it came"
    return (
        f"proved: {_what(result)} repeated {end}, in {counted(len(rows), 'segment')}; {compared} of the ledger and {checkpoints} "
        f"have the same bits{files}"
    )


#: Files that are named in one sentence.
_MOST_NAMED = 5


def _named(paths: list[str]) -> str:
    """Files of the script, by their names; the first ones of many."""
    if len(paths) <= _MOST_NAMED:
        return ", ".join(paths)
    return f"{', '.join(paths[: _MOST_NAMED - 1])} and {len(paths) - _MOST_NAMED + 1} more files"
