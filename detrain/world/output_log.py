"""What the script has printed, when and in which batch; written by the preload (`syscalls/output_log.c`) as it goes by.

A sequence of records: seconds since 1970 (float64), batches begun (uint64), stream (uint32; 1 standard output, 2 standard error), length
(uint32), the bytes of one call of `write`. Of stream 0 are marks of detrain's, in JSON:

    {"attempt": 2, "is_resuming": true, "immediate": [2]}   an attempt begins; these streams are handed on line by line
    {"checkpoint": 7}                                       number 7 stands here
    {"resumed": 7}                                          the attempt has come to number 7
    {"flushing": true}                                      what follows, until `false`, was handed on for a checkpoint

By the marks the pieces of killed attempts are put together to what a run that was never killed would have printed. Where standard output is
no terminal Python collects some thousand bytes before it writes: which batch a line of those is of, nobody knows.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: In the run directory.
NAME = "printed.log"
#: More than this is not recorded.
MOST_BYTES = 64 << 20
#: What Python collects at least before it hands it on by itself. Bytes.
_COLLECTED_BYTES = 8192
_HEAD = struct.Struct("<dQII")
_MARK = 0


@dataclass(frozen=True)
class Line:
    """One line, without its end; one that was overwritten on a terminal counts like any other."""

    at_s: float  # since 1970, when its end was written
    stream: int
    text: str
    batches: int  # begun when its end was written
    is_prompt: bool = True  # it was written when it was printed, so that it is of that batch


@dataclass(frozen=True)
class _Record:
    at_s: float
    batches: int
    stream: int
    content: bytes
    end: int  # in the file


def cut_torn(path: Path) -> None:
    """Take away what a killed attempt has left half written, so that what follows can be read."""
    if path.exists():
        whole = max((record.end for record in _records(path.read_bytes())), default=0)
        if whole < path.stat().st_size:
            os.truncate(path, whole)


def read(path: Path) -> list[Line]:
    """The lines of the run, in its order, each once; a last one without an end is left out. None without a file.

    Behind the place that the last attempt has come to stands what an earlier one had printed there.
    """
    transcript = _Transcript()
    for record in _records(path.read_bytes() if path.exists() else b""):
        if record.stream == _MARK:
            transcript.mark(json.loads(record.content), record.batches)
        else:
            transcript.add(record)
    return transcript.all_lines()


def _records(content: bytes) -> Iterator[_Record]:
    start = 0
    while start + _HEAD.size <= len(content):
        at_s, batches, stream, length = _HEAD.unpack_from(content, start)
        end = start + _HEAD.size + length
        if end > len(content) or stream not in (_MARK, 1, 2) or length == 0:  # zeros, after a power cut
            return
        yield _Record(at_s, batches, stream, content[start + _HEAD.size : end], end)
        start = end


class _Stream:
    """What one stream has been given of a line that has not ended, and how it hands on what it is given."""

    def __init__(self, rest: bytes = b"", *, is_immediate: bool = False) -> None:
        self.rest, self.is_immediate = rest, is_immediate
        self.is_rest_prompt = True
        self.batches = 0  # at the record before

    def lines(self, record: _Record, *, is_flushing: bool) -> Iterator[Line]:
        """The lines that end in a record."""
        *texts, rest = (self.rest + record.content).replace(b"\r", b"\n").split(b"\n")
        is_one = len(texts) <= 1 or record.batches <= self.batches + 1
        is_prompt = self.is_immediate or (is_one and not is_flushing and len(record.content) < _COLLECTED_BYTES)
        for number, text in enumerate(texts):
            if text:
                is_whole = number > 0 or not self.rest or self.is_rest_prompt
                yield Line(
                    record.at_s, record.stream, text.decode(errors="replace"), record.batches, is_prompt and is_whole
                )
        self.rest, self.is_rest_prompt, self.batches = rest, is_prompt, record.batches


class _Transcript:
    """Puts the attempts of a run together."""

    def __init__(self) -> None:
        self._lines: list[Line] = []
        self._ahead: list[Line] = []  # of attempts that had come further
        self._streams = {1: _Stream(), 2: _Stream()}
        #: By number of a checkpoint: how many lines stand before it, and what of the next.
        self._saved: dict[int, tuple[int, dict[int, bytes]]] = {}
        self._is_on_the_way = self._is_flushing = False

    def mark(self, document: dict[str, Any], batches: int) -> None:
        if "attempt" in document:
            self._is_on_the_way, self._is_flushing = document["is_resuming"], False
            self._streams = {one: _Stream(is_immediate=one in document["immediate"]) for one in self._streams}
            if not self._is_on_the_way:
                self._go_back_to(0, {})
        elif "flushing" in document:
            self._is_flushing = document["flushing"]
        elif "checkpoint" in document:
            rests = {number: stream.rest for number, stream in self._streams.items()}
            self._saved[document["checkpoint"]] = len(self._lines), rests
        elif "resumed" in document:
            self._is_on_the_way = False
            self._go_back_to(*self._saved.get(document["resumed"], (self._num_until(batches), {})))

    def add(self, record: _Record) -> None:
        found = list(self._streams[record.stream].lines(record, is_flushing=self._is_flushing))
        if not self._is_on_the_way:  # set-up code prints again what the first attempt's has printed
            self._lines += found

    def all_lines(self) -> list[Line]:
        reach = self._lines[-1].batches if self._lines else 0
        return [*self._lines, *(line for line in self._ahead if line.batches > reach)]

    def _go_back_to(self, num_lines: int, rests: dict[int, bytes]) -> None:
        every = self.all_lines()
        self._lines, self._ahead = every[:num_lines], every[num_lines:]
        for number, stream in self._streams.items():
            stream.rest, stream.is_rest_prompt = rests.get(number, b""), True

    def _num_until(self, batches: int) -> int:
        """Where there is no mark of the checkpoint: lines of the batches that had begun then."""
        return sum(line.batches <= batches for line in self._lines)
