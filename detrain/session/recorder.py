"""Writing the ledger, and checking a resumed attempt against what the killed one has written.

At the header of a batch the state is what the batches so far have made of it. A record holds digests of the generators of random
numbers, of the losses since the record before, and of a window of the leaves that change; the window moves on from record to record so
that the whole costs no more than its share of the time. What a record covers is in the record, so a resumed attempt can cover the same.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import xxhash

import detrain.state.handlers.standard  # noqa: F401 - registers the handlers
from detrain import eventlog
from detrain.adapters.protocol import MemoryUse
from detrain.errors import CheckpointError
from detrain.loops.position import Position
from detrain.loops.running import Loop
from detrain.messages import warn
from detrain.session.losses import Losses, Reading
from detrain.state import registry
from detrain.state.captured import Captured
from detrain.state.digests import PIECE_BYTES, Leaf, leaves
from detrain.store import ledger
from detrain.store.leaves import readable
from detrain.store.ledger import Batch
from detrain.world.plain_clock import monotonic

#: Share of the training's time that the ledger may take; 1 gives a record for every batch.
BUDGET = float(os.environ.get("DETRAIN_LEDGER_BUDGET", "0.008"))
#: Leaves and pieces that one record covers at most: it stays small enough to be written for every batch. Pieces.
MOST_PIECES = 256
#: There is a record at the latest after so many batches.
MOST_LOSSES = 1000
_BYTES_PER_S = 4e9  # what a digest is taken to cost before it has been measured
_PIECE_S = 2e-6
#: What a header at which something is done costs beside its own clock: the session's part of it, and caches that the step after finds cold.
_BESIDE_S = 80e-6
#: Of the budget so much goes to pieces in any case, and the rest if records leave it.
_PIECES_SHARE = 0.25
#: What a new measurement of the digests' cost counts, against those before.
_NEWEST = 0.1


class Recorder:
    """The ledger of one attempt."""

    def __init__(
        self,
        path: Path,
        generators: Callable[[], dict[str, Any]],
        differs: Callable[[Batch, str], None],
        losses: Losses | None = None,
    ) -> None:
        """`differs` is called with the record on file, and the leaf that is another now. `losses`: of the attempt."""
        self._path, self._generators, self._differs = path, generators, differs
        self.num_compared = 0
        #: Batches that had ended at the last record that was compared.
        self.compared_until = -1
        self._file: ledger.LedgerFile | None = None
        self._expected: dict[tuple[int, int], Batch] = {}
        self._expected_until, self._num_ahead = -1, 0
        self._before: ledger.Ledger | None = None
        self._is_other = False
        self._losses = losses if losses is not None else Losses()
        self._began_at = self._last_noted = 0
        self._began_s, self._spent_s = monotonic(), 0.0
        self._leaves: list[Leaf] = []  # of the last checkpoint
        #: Those of them that may change, with their sketches then; None: it has changed before.
        self._candidates: list[tuple[Leaf, int | None]] = []
        self._changing: list[Leaf] = []  # those of them that have changed since
        self._taken_at = self._pick_at = 0
        self._seen_at = (-1, 0)  # the header where the leaves had their paths
        #: Headers at which the killed attempt looked at its objects, from here on.
        self.scan_headers: set[tuple[int, int]] = set()
        self._by_path: dict[str, Leaf] = {}
        self._pieces: list[tuple[Leaf, int]] = []
        self._list_number, self._next_piece = 0, 0
        #: What was listed last with all its leaves, and under which number.
        self._listed: list[tuple[str, int]] | None = None
        self._listed_number = 0
        #: Spent on digests of pieces; what these take, over what they were taken to cost.
        self._pieces_s, self._slowness = 0.0, 1.0
        self._told_s = -math.inf
        self._asked_s, self._day_began_s = -math.inf, 0.0  # for the time of day
        #: Of generators: which, what watches it, what that gave with this fingerprint.
        self._fingerprints: dict[str, tuple[object, Callable[[], object], object, bytes]] = {}
        self.is_off = False

    def begin(
        self,
        attempt: int,
        batches: int,
        lengths: Iterable[tuple[str, int]] = (),
        *,
        is_other: bool = False,
        takes_over: bool | None = None,
    ) -> None:
        """The first header of the training, or the one that the run has resumed at.

        `lengths`: of the training's loops, from the outermost: part, and iterations or -1, for whoever watches.
        `is_other`: with other arguments than the attempt before. `takes_over`: than the checkpoint; None where there is none.
        """
        self._began_s = monotonic()
        try:
            before = ledger.read(self._path, since=batches, has_losses=False)
            self._file = ledger.LedgerFile(self._path)
            began = {"attempt": attempt, "batches": batches, "at": time.time(), "lengths": list(lengths)}
            is_other = is_other or (bool(takes_over) and batches not in before.changed_at)
            other_from = {"other_from": batches if takes_over is not None else 0} if is_other else {}
            self._file.append_json(b"A", {**began, **other_from})
        except (OSError, CheckpointError) as error:
            self._give_up(error)
            return
        if is_other:
            before.cut(other_from["other_from"])
        self._expected = {key: batch for key, batch in before.batches.items() if key[0] >= batches}
        self.scan_headers = {seen for seen in before.seen_at.values() if seen[0] >= batches}
        self._num_ahead = sum(key[0] > batches for key in self._expected)
        self._expected_until = max((key[0] for key in self._expected), default=-1)
        self._before, self._is_other = before, is_other
        self._list_number = max(before.lists, default=0)
        self._began_at = batches
        self._losses.forget_running()

    def budget_bytes_of(self, share: float) -> int:
        """What such a share of the run's first iteration is, by an attempt with the same arguments before; 0 if none has known it."""
        saved = [] if self._before is None or self._is_other else self._before.saved
        uses = [one["memory"] for one in saved if "memory" in one]
        return next(
            (use["budget_bytes"] for use in reversed(uses) if use.get("share") == share and use["budget_bytes"]), 0
        )

    @property
    def is_comparing(self) -> bool:
        """True while what a killed attempt has left on record may still come."""
        return bool(self._expected)

    @property
    def has_expectations(self) -> bool:
        """True while there are batches ahead that a killed attempt had already done.

        A header behind which as many batches had ended as now may lie behind us already.
        """
        return bool(self._expected) and self._num_ahead > 0

    def add_losses(self, readings: Iterable[Reading]) -> None:
        """Gradients are about to be computed of these."""
        if not self.is_off:
            self._losses.add(readings)

    def on_saved(
        self, file: Path, batches: int, stall_s: float, interval_s: float, memory: MemoryUse | None = None
    ) -> None:
        """A checkpoint is on the disk. Called in the background thread.

        `stall_s`: how long the training waited for it; `interval_s`: what `auto` had chosen, or 0. `memory`: of a budget, until now.
        """
        if self.is_off or self._file is None:
            return
        seconds = round(monotonic() - self._began_s, 6)
        found = {
            "name": file.name,
            "batches": batches,
            "at": time.time(),
            "stall_s": round(stall_s, 6),
            "bytes": file.stat().st_size,
            **({"interval_s": round(interval_s, 3)} if interval_s else {}),
            **({"memory": asdict(memory)} if memory is not None else {}),
        }
        eventlog.note("saved", checkpoint=file.name, batches=batches, bytes=found["bytes"], stall_s=found["stall_s"])
        self._write_json(b"S", {**found, "seconds": seconds, "ledger_s": round(self._spent_s, 6)})

    def next_at_header(self, batches: int) -> tuple[float, float]:
        """The number of batches, and the moment, before which `at_header` does no more than end a batch; `batches` have begun."""
        if self.is_off or self._file is None:
            return math.inf, math.inf
        if self._expected:
            return 0, 0.0
        next_pick = self._pick_at if self._candidates else math.inf
        next_must = batches - 1 + MOST_LOSSES - self._losses.num_batches
        return min(next_pick, next_must), self._began_s + self._spent_s / BUDGET if BUDGET else math.inf

    def at_header(self, at: Position, loop: Loop, now_s: float, *, must: bool = False) -> None:
        """A batch may be about to begin in `loop`, `at.batches` have ended.

        `now_s`: monotonic clock. `must`: a checkpoint is about to be taken here.
        """
        if self.is_off or self._file is None:
            return
        batches = at.batches
        self._losses.end_batch(batches, counts=batches > self._began_at)
        is_picking = batches >= self._pick_at and bool(self._candidates)
        if is_picking:
            self._pick_changing(batches)
        if batches > self._expected_until:
            self._expected = {}  # what has not come by now will not come: the attempt trusts changes
        allowance_s = (now_s - self._began_s) * BUDGET - self._spent_s
        is_due = bool(self._expected) or must or allowance_s > 0 or self._losses.num_batches >= MOST_LOSSES
        if is_due:
            position = position_of(loop)
            expected = self._expected.pop((batches, position), None)
            if expected is not None:
                self._num_ahead -= batches > self._began_at
                self._compare(expected)
            is_urgent = must or expected is not None or allowance_s <= 0
            self._write_batch(at, position, allowance_s + now_s, is_urgent=is_urgent)
        if is_due or is_picking:
            self._spent_s += monotonic() - now_s + (_BESIDE_S if BUDGET < 1 else 0.0)

    def _write_batch(self, at: Position, position: int, until_s: float, *, is_urgent: bool) -> None:
        """`until_s`: when the time that the ledger may take is used up. `is_urgent`: some state is covered also if it is by now."""
        batches = at.batches
        num_losses = batches - max(self._last_noted, self._began_at)
        generators = self._digest_of_generators()
        losses = self._losses.digest(batches - num_losses + 1, batches + 1)
        first, pieces = self._cover(until_s, is_urgent=is_urgent)  # last, of the time that the others have left
        record = Batch(
            batches, position, at.epochs, at.batch_in_epoch, generators, losses, num_losses,
            self._list_number, first, pieces,
        )  # fmt: skip
        curve = self._losses.take_curve()
        if eventlog.is_on() and monotonic() - self._told_s >= 1.0:
            self._told_s = monotonic()
            loss = curve[-1][2] if curve else None
            eventlog.note("progress", epoch=max(at.epochs - 1, 0), batch=at.batch_in_epoch, batches=batches, loss=loss)
        more = [(b"V", ledger.encode_losses(self._time_of_day_s(), curve))] if curve else []
        self._write((b"B", record.encode()), *more)
        self._last_noted = batches
        if not self._expected:
            self._losses.forget()  # a record that a killed attempt has left may reach further back than ours

    # --- what is covered -----------------------------------------------------------------------------------------------------

    def is_to_scan(self, batches: int, loop: Loop) -> bool:
        """True at a header where the killed attempt looked at its objects, whose names have to be compared with ours."""
        return self.has_expectations and (batches, position_of(loop)) in self.scan_headers

    def scan(self, captured: Captured, batches: int, loop: Loop) -> None:
        """These leaves have just been captured, at this header: they can be covered from now on."""
        if self.is_off or self._file is None:
            return
        self._seen_at = batches, position_of(loop)
        before, changed = set(map(id, self._leaves)), set(map(id, self._changing))
        found = leaves(captured, self._leaves)
        self._candidates = [(leaf, None if id(leaf) in changed else leaf.first_sketch()) for leaf in found]
        self._changing, self._taken_at, self._pick_at = [], batches, batches + 1
        self._by_path = {}
        for leaf in found:
            if id(leaf) not in before:
                leaf.path = readable(captured.tree, leaf.path)
            while leaf.path in self._by_path:
                leaf.path += "'"  # two keys of one dict, say
            self._by_path[leaf.path] = leaf
        self._leaves = found

    def _pick_changing(self, batches: int) -> None:
        """Of what lay there at the checkpoint: what has changed since and is still there is the run's state, and not its data.

        Looked at after 1, 2, 4, 8 … batches: weights may change in every tenth only.
        """
        sketches = [(leaf, before, None if before is None else leaf.sketch()) for leaf, before in self._candidates]
        changed = [leaf for leaf, before, now in sketches if now is None or now not in (0, before)]
        self._candidates = [(leaf, before) for leaf, before, now in sketches if now is not None and now == before]
        self._pick_at = batches + max(batches - self._taken_at, 1)
        if not changed:
            return
        self._changing += changed
        self._list_number += 1
        self._pieces = [(leaf, start) for leaf in self._changing for start in range(0, leaf.num_bytes, PIECE_BYTES)]
        self._next_piece = 0
        listed = [(leaf.path, leaf.num_bytes) for leaf in self._changing]
        same: dict[str, object] = {"as": self._listed_number}
        if listed != self._listed:
            self._listed, self._listed_number, same = listed, self._list_number, {"leaves": listed}
        self._write_json(b"L", {"number": self._list_number, "seen_at": self._seen_at, **same})

    def _cover(self, until_s: float, *, is_urgent: bool) -> tuple[int, tuple[int, ...]]:
        """As many pieces as there is time for until then, from where the last record ended.

        Of batches so short that there never is, every so many get one, or the state would not be covered at all.
        """
        began_s = monotonic()
        first = self._next_piece if self._next_piece < len(self._pieces) else 0
        is_urgent = is_urgent or self._pieces_s < (began_s - self._began_s) * BUDGET * _PIECES_SHARE
        digests: list[int] = []
        end_s, guess_s = began_s, 0.0
        for leaf, start in islice(self._pieces, first, first + MOST_PIECES):
            cost_s = _PIECE_S + min(leaf.num_bytes - start, PIECE_BYTES) / _BYTES_PER_S
            if began_s + (guess_s + cost_s) * self._slowness > until_s and (digests or not is_urgent):
                break
            digests.append(leaf.digest(start))
            guess_s += cost_s
        if digests:
            end_s = monotonic()
            self._pieces_s += end_s - began_s
            self._slowness += ((end_s - began_s) / guess_s - self._slowness) * _NEWEST
        self._next_piece = first + len(digests)
        return first, tuple(digests)

    def _digest_of_generators(self) -> int:
        found = []
        # By name: a later attempt may load frameworks in another order.
        for name, generator in sorted(self._generators().items()):
            known = self._fingerprints.get(name)
            if known is not None and known[0] is generator and known[1]() == known[2]:
                found += [name.encode(), known[3]]
                continue
            handler = registry.handler_for(type(generator))
            found += [name.encode(), handler.fingerprint(generator)]
            watch = handler.watch(generator)
            if watch is not None:
                self._fingerprints[name] = generator, watch, watch(), found[-1]
        return xxhash.xxh3_64_intdigest(b"".join(found)) or 1

    # --- what a killed attempt had done ---------------------------------------------------------------------------------------

    def _compare(self, expected: Batch) -> None:
        differing = next(self._differences(expected), None)
        if differing is not None:
            self._differs(expected, differing)
        self.num_compared += 1
        self.compared_until = expected.batches

    def _differences(self, expected: Batch) -> Iterator[str]:
        assert self._before is not None
        is_same_look = self._before.seen_at.get(expected.list_number) == self._seen_at
        window = self._before.window(expected) if is_same_look else []
        for (path, start), digest in zip(window, expected.pieces, strict=is_same_look):
            leaf = self._by_path.get(path)
            here = leaf.digest(start) if leaf is not None else 0
            if here and digest and here != digest:
                yield path
        if expected.generators and expected.generators != self._digest_of_generators():
            yield "a generator of random numbers"
        first = expected.batches - expected.num_losses
        if first >= self._began_at and expected.losses != self._losses.digest(first + 1, expected.batches + 1):
            yield "a loss"

    def _time_of_day_s(self) -> float:
        """By the plain clock, for a second: the time of day is the script's clock too, which takes longer to ask than a digest."""
        now_s = monotonic()
        if now_s - self._asked_s >= 1.0:
            self._asked_s, self._day_began_s = now_s, time.time() - now_s
        return self._day_began_s + now_s

    # --- the file ------------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Record nothing more."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, *records: tuple[bytes, bytes]) -> None:
        assert self._file is not None
        try:
            self._file.append_all(*records)
        except OSError as error:
            self._give_up(error)

    def _write_json(self, kind: bytes, document: dict[str, Any]) -> None:
        self._write((kind, ledger.encode_json(document)))

    def _give_up(self, error: Exception) -> None:
        self.is_off = True
        self._losses.keep_none()
        what = "written" if isinstance(error, OSError) else "read"
        warn(
            "ledger",
            f"the ledger cannot be {what}: {error}. The run goes on; from here on it is not recorded",
        )


def position_of(loop: Loop) -> int:
    """The ledger's digest of where a run is, at this loop's header."""
    return ledger.digest_of_position((one.ordinal, one.iteration) for one in loop.nest)
