"""The ledger of a run: what each batch has done, in digests; appended as the run goes.

The file is a sequence of records. A record is framed so that a torn last one is known as such::

    kind      1 byte   B, L, S, V or A
    length    4 bytes  little endian, of the body
    body      length bytes
    check     4 bytes  CRC-32 of kind, length and body

    A  an attempt begins           JSON {"attempt": 2, "batches": 120, "at": 1763652011.5, "lengths": [["epoch", 90], ["batch", -1]]}:
                                   seconds since 1970; iterations of each loop, -1 where they are not known; with "other_from": 120
                                   what is on record from there on was done with other arguments, and stands for nothing any more
    L  which leaves are covered    JSON {"number": 3, "seen_at": [128, 77], "leaves": [[path, bytes], …]}; pieces of at most 1 MiB are
                                   counted through. With "as": 2 in place of "leaves": those of that list, since after every
                                   checkpoint there is one, and mostly the same again. `seen_at`: the header (batches, position) where
                                   the objects had these paths; a name may stand for another object since, in each attempt when its
                                   collector of garbage comes by
    S  a checkpoint was taken      JSON {"name": …, "batches": 128, "at": …, "stall_s": 0.02, "bytes": 52133, "seconds": 61.2,
                                   "ledger_s": 0.4, "interval_s": 2}: the training waited `stall_s`, `auto` had chosen
                                   `interval_s`; since the attempt came to its first header `seconds` have gone by, of which the
                                   ledger took `ledger_s`. With a memory budget "memory": {"budget_bytes": …, "peak_bytes": …,
                                   "num_evictions": …, "num_again": …, "again_s": …, "planner": …, "num_planned": …,
                                   "num_left": …, "why": …, "curve_bytes": […], "share": 0.6}, since the attempt's first header: whose
                                   plan was followed, in how many steps to the end, in how many it was left, and why; memory over a step
                                   `ledger_s` is by the ledger's clock, and what it is reckoned to cost beside that
    V  losses of batches           seconds since 1970 (float64), then for each loss the struct VALUE
    B  a batch has ended           the struct BATCH, then one 4-byte digest for each piece covered

A later record of the same batch stands for an attempt that did it again.
"""

from __future__ import annotations

import errno
import json
import os
import re
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import starmap
from pathlib import Path
from typing import Any

import xxhash

from detrain.errors import CheckpointError
from detrain.state.digests import PIECE_BYTES

_FRAME = struct.Struct("<cI")
_CHECK = struct.Struct("<I")
#: Where a record may begin.
_HEAD = re.compile(rb"[ABLSV]")
#: Batches ended since the run began, digest of the position, epochs begun, batches of this epoch; digest of the generators, and of the
#: losses of as many last batches (0: not taken); number of the list of leaves, first piece covered.
_BATCH = struct.Struct("<QQIIQQIII")


#: Batches ended with the one that the loss is of, which of its losses, the loss.
_VALUE = struct.Struct("<QId")
_AT = struct.Struct("<d")
_ENDED = struct.Struct("<Q")  # what a B record begins with


@dataclass(frozen=True, slots=True)
class Batch:
    """What is on record of one batch."""

    batches: int
    position: int  # tells apart the headers between two batches: where one pass has ended, and where the next begins
    epochs: int
    batch_in_epoch: int
    generators: int = 0
    losses: int = 0
    num_losses: int = 0
    list_number: int = 0
    first_piece: int = 0
    pieces: tuple[int, ...] = ()

    def encode(self) -> bytes:
        """The record's body."""
        head = _BATCH.pack(
            self.batches, self.position, self.epochs, self.batch_in_epoch, self.generators, self.losses, self.num_losses,
            self.list_number, self.first_piece,
        )  # fmt: skip
        return head + struct.pack(f"<{len(self.pieces)}I", *self.pieces)

    @classmethod
    def decode(cls, body: bytes) -> Batch:
        """The inverse of `encode`."""
        count = (len(body) - _BATCH.size) // 4
        fields: list[Any] = [*_BATCH.unpack_from(body), struct.unpack_from(f"<{count}I", body, _BATCH.size)]
        return cls(*fields)

    @property
    def key(self) -> tuple[int, int]:
        """Which header of the run this is."""
        return self.batches, self.position


class LedgerFile:
    """A ledger that is being written. Every record is in the system's hands when `append` returns; a kill loses none."""

    def __init__(self, path: Path) -> None:
        """Open or make the file, and cut off what a killed attempt has left half written."""
        self._number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        os.ftruncate(self._number, _whole_bytes(path))

    def append(self, kind: bytes, body: bytes) -> None:
        """Add one record. Raises OSError."""
        self.append_all((kind, body))

    def append_all(self, *records: tuple[bytes, bytes]) -> None:
        """Add these, kind and body of each, by one call of the system. Raises OSError."""
        content = b"".join(map(_framed, records))
        if os.write(self._number, content) != len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # a torn record must stay the last

    def append_json(self, kind: bytes, document: object) -> None:
        """Add one record whose body is JSON."""
        self.append(kind, encode_json(document))

    def close(self) -> None:
        """Write no more."""
        os.close(self._number)


@dataclass
class Ledger:
    """A ledger that has been read."""

    #: By number of batches ended and position, in the order of the run; of one that was done more than once, the last.
    batches: dict[tuple[int, int], Batch]
    #: By number: path and size in bytes of each leaf.
    lists: dict[int, list[tuple[str, int]]]
    attempts: list[dict[str, Any]]
    saved: list[dict[str, Any]]
    #: By number of a list: the header where its objects had these paths. Only digests of lists that were seen at the same can be compared.
    seen_at: dict[int, tuple[int, int]] = field(default_factory=dict)
    #: By number of batches ended and which loss of the last of them; of a batch that was done more than once, the last.
    losses: dict[tuple[int, int], float] = field(default_factory=dict)
    #: When how many batches had ended, in the order in which it was written: seconds since 1970, batches.
    times: list[tuple[float, int]] = field(default_factory=list)
    #: After so many batches the run went on with other arguments.
    changed_at: list[int] = field(default_factory=list)
    #: Leaf and first byte of each piece of the list that was looked at last, by its number.
    _pieces: dict[int, list[tuple[str, int]]] = field(default_factory=dict, compare=False, repr=False)

    def cut(self, batches: int) -> None:
        """Forget what was done from a batch on: it is done with other arguments now."""
        self.changed_at = [*(one for one in self.changed_at if one < batches), *([batches] if batches else [])]
        self.batches = {key: batch for key, batch in self.batches.items() if key[0] < batches}
        self.losses = {key: loss for key, loss in self.losses.items() if key[0] <= batches}
        self.times = [(at_s, done) for at_s, done in self.times if done <= batches]

    def window(self, batch: Batch) -> list[tuple[str, int]]:
        """Leaf and first byte of each piece that a record covers."""
        pieces = self._pieces.get(batch.list_number)
        if pieces is None:  # most records in a row are of one list, which may be of all leaves of a large state
            leaves = self.lists.get(batch.list_number, ())
            pieces = [(path, start) for path, size in leaves for start in range(0, size, PIECE_BYTES)]
            self._pieces = {batch.list_number: pieces}
        return pieces[batch.first_piece : batch.first_piece + len(batch.pieces)]


def read(path: Path, *, since: int = 0, has_losses: bool = True) -> Ledger:
    """Read a ledger; a torn last record is left out, a file that is not there is empty. Raises `CheckpointError` for damage before that.

    A long run's is large in memory: `since` leaves out the records of fewer batches than that, `has_losses=False` the losses and when
    they were.
    """
    ledger = Ledger({}, {}, [], [])
    if not path.exists():
        return ledger
    last = 0  # batches of this attempt at the last time that is known
    for kind, body in _records(path.read_bytes(), path.name):
        if kind == b"B":
            if _ENDED.unpack_from(body)[0] >= since:
                batch = Batch.decode(body)
                ledger.batches[batch.key] = batch
        elif kind == b"L":
            _read_list(ledger, json.loads(body))
        elif kind == b"A":
            ledger.attempts.append(json.loads(body))
            last = 0
            if "other_from" in ledger.attempts[-1]:
                ledger.cut(ledger.attempts[-1]["other_from"])
        elif kind == b"S":
            saved = json.loads(body)
            ledger.saved.append(saved)
            # It is durable a while after it was taken: later batches may have ended before that, and be on record.
            if "at" in saved and saved["batches"] > last:
                last = saved["batches"]
                ledger.times.append((saved["at"], last))
        elif kind == b"V" and has_losses:
            _read_losses(ledger, body)
            last = ledger.times[-1][1] if ledger.times else last
    return ledger


class Tail:
    """A ledger that another process writes: what has been added since the last look."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file, self._end = (0, 0), 0

    def read(self) -> list[tuple[bytes, bytes]]:
        """Kind and body of each record that was not there before; of a ledger that was begun anew all. None that is half written."""
        try:
            with self._path.open("rb") as file:
                status = os.fstat(file.fileno())
                if (status.st_dev, status.st_ino) != self._file or status.st_size < self._end:
                    self._file, self._end = (status.st_dev, status.st_ino), 0
                file.seek(self._end)
                content = file.read()
        except FileNotFoundError:
            return []
        found = []
        end = 0
        for start, end in _sound_frames(content):
            found.append((content[start : start + 1], content[start + _FRAME.size : end - _CHECK.size]))
        self._end += end
        return found


def decode_losses(body: bytes) -> tuple[float, list[tuple[int, int, float]]]:
    """Of a V record: seconds since 1970; batches ended, which loss of the last of them, the loss."""
    return _AT.unpack_from(body)[0], list(_VALUE.iter_unpack(body[_AT.size :]))


def encode_json(document: object) -> bytes:
    """The body of an A, L or S record."""
    return json.dumps(document, separators=(",", ":")).encode()


def encode_losses(at_s: float, losses: Iterable[tuple[int, int, float]]) -> bytes:
    """The body of a V record."""
    return _AT.pack(at_s) + b"".join(starmap(_VALUE.pack, losses))


def _read_list(ledger: Ledger, document: dict[str, Any]) -> None:
    number = document["number"]
    if "as" in document:
        ledger.lists[number] = ledger.lists[document["as"]]
    else:
        ledger.lists[number] = [(leaf, size) for leaf, size in document["leaves"]]
    batches, position = document.get("seen_at", (-1, number))
    ledger.seen_at[number] = batches, position


def _read_losses(ledger: Ledger, body: bytes) -> None:
    at_s, losses = decode_losses(body)
    ledger.losses.update(((batches, which), value) for batches, which, value in losses)
    ledger.times.append((at_s, losses[-1][0] if losses else 0))


def digest_of_position(loops: Iterable[tuple[int, int]]) -> int:
    """Of the loops from the outermost: which entry, which iteration. Without lines, so that two versions of a script can be compared."""
    return xxhash.xxh3_64_intdigest(" ".join(f"{ordinal}.{iteration}" for ordinal, iteration in loops).encode())


def _framed(record: tuple[bytes, bytes]) -> bytes:
    kind, body = record
    head = _FRAME.pack(kind, len(body))
    return head + body + _CHECK.pack(zlib.crc32(body, zlib.crc32(head)))


def _records(content: bytes, name: str) -> Iterator[tuple[bytes, bytes]]:
    end = 0
    for start, end in _sound_frames(content):
        yield content[start : start + 1], content[start + _FRAME.size : end - _CHECK.size]
    if not _is_torn(content, end):
        raise CheckpointError(
            f"{name} is damaged at byte {end}: a record does not have the length or the checksum that it was written with"
        )


def _whole_bytes(path: Path) -> int:
    """Length of the file without a torn last record; of a damaged file all of it, so that whoever reads it next can name the damage."""
    content = path.read_bytes()
    end = max((end for _, end in _sound_frames(content)), default=0)
    return end if _is_torn(content, end) else len(content)


def _sound_frames(content: bytes) -> Iterator[tuple[int, int]]:
    """Begin and end of each record, up to the first that is not as it was written."""
    start = 0
    while (end := _end_of_frame(content, start)) <= len(content) and _is_sound(content, start, end):
        yield start, end
        start = end


def _is_torn(content: bytes, start: int) -> bool:
    """Whether what stands at `start`, where the sound records end, can be a record that a kill has cut short: nothing follows it.

    Its length cannot be believed: a damaged one may reach beyond the end of the file, over all the records that follow.
    """
    if _end_of_frame(content, start) < len(content):
        return False
    heads = (match.start() for match in _HEAD.finditer(content, start + 1))
    return not any(
        (end := _end_of_frame(content, head)) <= len(content) and _is_sound(content, head, end) for head in heads
    )


def _end_of_frame(content: bytes, start: int) -> int:
    """By its length; where not even the head lies in the file, behind the end of that."""
    if start + _FRAME.size > len(content):
        return len(content) + 1
    return int(start + _FRAME.size + _FRAME.unpack_from(content, start)[1] + _CHECK.size)


def _is_sound(content: bytes, start: int, end: int) -> bool:
    return bool(zlib.crc32(content[start : end - _CHECK.size]) == _CHECK.unpack_from(content, end - _CHECK.size)[0])
