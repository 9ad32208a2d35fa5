"""`detrain diff` of two runs or two checkpoints; what counts is said in `detrain.proof.comparison`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from detrain.errors import CheckpointError, UsageError
from detrain.messages import counted
from detrain.proof.comparison import Comparison, Side
from detrain.proof.divergence import Parting, find
from detrain.store import checkpoint as checkpoint_file
from detrain.store import ledger, listing
from detrain.store.directory import RunDirectory
from detrain.store.job import JobDirectory
from detrain.store.record import RunRecord
from detrain.world import loop_clock_log, setup_clock

#: Differences of a job that are written out; all are counted.
_SHOWN = 20


def compare(a: Path, b: Path) -> dict[str, Any]:
    """Compare two checkpoint files, run directories (by their latest checkpoint) or jobs (rank by rank, by their latest cut).

    Returns `same`, `parting` (where two runs part, by their ledgers; None if nowhere), what was
    compared (`a`, `b`), `num_leaves`, `num_differences`, the first `differences` and `notes`. A difference that has `is_clock_reading` is
    what the clock said in either run.
    Raises `CheckpointError` for what cannot be read.
    """
    if listing.is_job(a) or listing.is_job(b):
        return _compare_jobs(a, b)
    parting = parting_of(a, b) if a.is_dir() and b.is_dir() else None
    return compare_sides(open_side(a), open_side(b), parting)


def _compare_jobs(a: Path, b: Path) -> dict[str, Any]:
    """What `compare` returns, of all ranks together: `parting`, differences and notes say of which, as `rank`."""
    jobs = JobDirectory(a), JobDirectory(b)
    sizes = [job.size() for job in jobs]
    if 0 in sizes:
        alone = (a, b)[sizes.index(0)]
        raise UsageError(f"{alone} is not a job of several ranks, and the other is; name one of its ranks")
    if sizes[0] != sizes[1]:
        raise UsageError(f"{a} is a job of {sizes[0]} ranks, {b} one of {sizes[1]}")
    results = []
    for rank in range(sizes[0]):
        paths = [job.rank(rank).path for job in jobs]
        parting = parting_of(*paths)
        results.append(compare_sides(open_rank(jobs[0], rank), open_rank(jobs[1], rank), parting))
    partings = [{**one["parting"], "rank": rank} for rank, one in enumerate(results) if one["parting"] is not None]
    different = [{**found, "rank": rank} for rank, one in enumerate(results) for found in one["differences"]]
    return {
        "same": all(one["same"] for one in results),
        "parting": min(partings, key=lambda one: one["batches"], default=None),
        **{side: {**results[0][side], "path": str(path)} for side, path in (("a", a), ("b", b))},
        "num_leaves": sum(one["num_leaves"] for one in results),
        "num_differences": sum(one["num_differences"] for one in results),
        "differences": different[:_SHOWN],
        "notes": [f"rank {rank}: {note}" for rank, one in enumerate(results) for note in one["notes"]],
    }


def open_rank(job: JobDirectory, rank: int) -> Side:
    """A rank's part of the latest cut. Raises `CheckpointError` if it is not whole."""
    cuts = job.manifests.read()
    if not cuts:
        raise CheckpointError(f"there is no cut in {job.path}")
    return Side(*checkpoint_file.load(job.part(cuts[0], rank)), is_finished=bool(job.finished_at()))


def compare_sides(a: Side, b: Side, parting: Parting | None = None, *, has_more: bool = False) -> dict[str, Any]:
    """Compare two checkpoints that have been loaded; returns what `compare` does. `has_more`: see `Comparison`."""
    sides = a, b
    walk = Comparison(*sides, has_more=has_more)
    walk.run()
    _mark_readings(walk.differences, sides)
    return {
        "same": not walk.num_differences and parting is None,
        "parting": _describe_parting(parting),
        "a": _summary(sides[0]),
        "b": _summary(sides[1]),
        "num_leaves": walk.num_leaves,
        "num_differences": walk.num_differences,
        "differences": walk.differences,
        "notes": [*_notes(*sides), *(f"{name}: {one} / {other}" for name, one, other in walk.notes)],
    }


def _mark_readings(differences: list[dict[str, Any]], sides: tuple[Side, Side]) -> None:
    """Set `is_clock_reading` where both numbers are, to the last bit, what a clock has told the one run and the other."""
    numbers = [
        found
        for found in differences
        if found["what"] == "value" and type(found["a"]) is type(found["b"]) and type(found["a"]) in (int, float)
    ]
    if numbers:
        told = [_readings(side) for side in sides]
        for found in numbers:
            if found["a"] in told[0] and found["b"] in told[1]:
                found["is_clock_reading"] = True


def _readings(side: Side) -> set[float]:
    """What the clocks have told a run, in ns and in s; nothing for a checkpoint that does not lie in a run directory."""
    folder = side.checkpoint.path.parent
    in_loops = loop_clock_log.read(folder / loop_clock_log.NAME)["ns"].tolist()
    all_ns = {*setup_clock.read(folder / setup_clock.NAME).values(), *in_loops}
    return {*all_ns, *(ns / 1e9 for ns in all_ns)}


def parting_of(a: Path, b: Path) -> Parting | None:
    """Where two runs part, by their ledgers."""
    names = [(RunDirectory(path).read_record() or RunRecord()).name for path in (a, b)]
    one, other = (ledger.read(path / "ledger", has_losses=False) for path in (a, b))
    return find(one, other, (names[0], names[1]))


def _describe_parting(parting: Parting | None) -> dict[str, Any] | None:
    """Without the ledger's own keys."""
    return None if parting is None else {k: v for k, v in vars(parting).items() if k not in ("key", "last_key")}


def open_side(path: Path) -> Side:
    """A checkpoint, or a run's latest one. A run with a damaged checkpoint that may be the latest is refused."""
    if not path.is_dir():
        return Side(*checkpoint_file.load(path))
    directory = RunDirectory(path)
    good, bad = directory.read_checkpoints()
    is_finished = bool(directory.finished_at())
    if bad and not (is_finished and good and good[0].meta.is_exhausted):
        raise CheckpointError(f"{path}: {bad[0]}, and it may be the latest. Name two checkpoint files instead")
    if not good:
        raise CheckpointError(f"there is no checkpoint in {path}")
    return Side(*checkpoint_file.load(good[0].path), is_finished=is_finished)


def _summary(side: Side) -> dict[str, Any]:
    meta = side.checkpoint.meta
    found = {"path": str(side.checkpoint.path), "position": [list(loop[2:]) for loop in meta.position]}
    return found if side.is_finished is None else {**found, "is_finished": side.is_finished}


def _notes(a: Side, b: Side) -> list[str]:
    meta_a, meta_b = a.checkpoint.meta, b.checkpoint.meta
    facts = sorted(meta_a.facts.keys() | meta_b.facts.keys())
    found = [(name, meta_a.facts.get(name), meta_b.facts.get(name)) for name in facts]
    found.append(("arguments", meta_a.arguments, meta_b.arguments))
    one, other = ({side.text(key): value for key, value in side.checkpoint.meta.sources.items()} for side in (a, b))
    found.append(("sources", one, other))
    return [f"{name}: {one} / {other}" for name, one, other in found if one != other]


def format_result(result: dict[str, Any]) -> str:
    """A comparison as a person reads it."""
    both = f"A {result['a']['path']}, B {result['b']['path']}"
    if result["same"]:
        lines = [f"same: {result['num_leaves']} leaves. {both}"]
    else:
        number = result["num_differences"]
        num_readings = sum("is_clock_reading" in found for found in result["differences"])
        read = (
            f", {'all' if num_readings == number else num_readings} of them readings of the clock"
            if num_readings
            else ""
        )
        lines = [f"different: {counted(number, 'difference')} in {result['num_leaves']} leaves{read}. {both}"]
    if result["parting"] is not None:
        lines.append(_format_parting(result["parting"]))
    lines += [_format_difference(found) for found in result["differences"]]
    left_out = result["num_differences"] - len(result["differences"])
    if left_out:
        lines.append(f"  … and {left_out} more")
    return "\n".join([*lines, *(f"  note: not counted: {note}" for note in result["notes"])])


def _format_parting(found: dict[str, Any]) -> str:
    if found["last_same"] < 0 and found["num_compared"] <= 1:
        return (
            f"  the runs differ from the beginning: {found['leaf']} differs first, in the first record of both ledgers"
        )
    since = f"the same after batch {found['last_same']}" if found["last_same"] >= 0 else "no record before is the same"
    rank = f", on rank {found['rank']}" if "rank" in found else ""
    return (
        f"  the runs differ from batch {found['batches']} on (epoch {found['epoch']}, batch {found['batch']} of it){rank}: "
        f"{found['leaf']} differs first; {since}, according to the {found['num_compared']} records that both ledgers have up to there"
    )


def _format_difference(found: dict[str, Any]) -> str:
    rank = f"rank {found['rank']}: " if "rank" in found else ""
    text = f"  {rank}{found['path']}: {found['what']}"
    if found["what"] == "elements":
        size = math.prod(found["shape"])
        text += f": {found['count']} of {size} ({found['dtype']} {found['shape']}) differ, first at {found['index']}"
    elif "value" in found:
        text += f": {found['value']}"
    if "a" in found:
        text += f": A {found['a']}, B {found['b']}"
    if "a_bits" in found:
        text += f" (bits {found['a_bits']}, {found['b_bits']})"
    if "is_clock_reading" in found:
        text += ": what the clock said in either run"
    return text
