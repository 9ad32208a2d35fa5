"""The section of a job: what each of its ranks has done, and which one is the last to have its part of a cut on the disk."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from detrain.report import markup
from detrain.report.history import History


def section(history: History) -> Iterable[str]:
    """Nothing for a run of one process."""
    if not history.ranks:
        return
    from detrain.report import figures

    yield "<h2>Ranks</h2>"
    late = _lateness(history)
    there = len(history.ranks)
    if there < history.run["num_ranks"]:
        yield f"<p>{there} of {history.run['num_ranks']} ranks have their directories on this host.</p>"
    yield markup.table(
        [
            "rank", "batches", "attempts", "parts of cuts", "the training waited for one (median)",
            "on the disk later than the first (median)", "losses",
        ],
        [
            [
                number,
                one.batches,
                one.run["attempts"],
                len(one.ledger.saved),
                _milliseconds([saved["stall_s"] for saved in one.ledger.saved if "stall_s" in saved]),
                _milliseconds(late.get(number, [])),
                len(one.ledger.losses),
            ]
            for number, one in history.ranks.items()
        ],
    )  # fmt: skip
    slowest = max(late, key=lambda number: median(late[number]), default=None)
    if slowest is not None and len(late) > 1 and median(late[slowest]) > _NOTABLE_S:
        yield (
            f"<p>Cuts wait for rank {slowest}: its part is on the disk {median(late[slowest]) * 1e3:.0f} ms behind the "
            "first.</p>"
        )
    losses = figures.losses_by_rank(history.ranks)
    if losses is not None:
        yield markup.figure(losses, "Losses by rank")


#: A rank that is later than this at cuts is named.
_NOTABLE_S = 0.05


def _lateness(history: History) -> dict[int, list[float]]:
    """By rank, how much later than the first its part of each cut was on the disk, by the hosts' clocks. Seconds."""
    written: dict[tuple[str, int], dict[int, float]] = {}
    for number, one in history.ranks.items():
        for saved in one.ledger.saved:
            if "at" in saved:
                written.setdefault((saved["name"], saved["batches"]), {})[number] = saved["at"]
    late: dict[int, list[float]] = {}
    for by_rank in written.values():
        if len(by_rank) == len(history.ranks):
            for number, at_s in by_rank.items():
                late.setdefault(number, []).append(at_s - min(by_rank.values()))
    return late


def _milliseconds(seconds: list[float]) -> str:
    return f"{median(seconds) * 1e3:.1f} ms" if seconds else ""
