"""What a script printed, as the preload noted it."""

from __future__ import annotations

import json
import struct
from pathlib import Path

from detrain.world import output_log
from detrain.world.output_log import Line


def record(at_s: float, batches: int, stream: int, text: bytes) -> bytes:
    return struct.pack("<dQII", at_s, batches, stream, len(text)) + text


def mark(batches: int = 0, **document: object) -> bytes:
    return record(0.0, batches, 0, json.dumps(document).encode())


def attempt(*, is_resuming: bool, immediate: tuple[int, ...] = (1, 2)) -> bytes:
    return mark(attempt=1, is_resuming=is_resuming, immediate=immediate)


def said(*batches: int, suffix: str = "") -> bytes:
    """A line of each batch."""
    return b"".join(record(0.0, one, 1, f"line {one}{suffix}\n".encode()) for one in batches)


def read(path: Path, *pieces: bytes) -> list[tuple[int, str]]:
    path.write_bytes(b"".join(pieces))
    return [(line.batches, line.text) for line in output_log.read(path)]


def test_lines_are_put_together_by_stream(tmp_path: Path) -> None:
    path = tmp_path / output_log.NAME
    pieces = [
        (1.0, 0, 1, b"lo"), (2.0, 1, 2, b"10%\r20%\r"), (3.0, 1, 1, b"ss 1\nloss"), (4.0, 2, 1, b" 2\n\n\xff\nrest"),
    ]  # fmt: skip
    path.write_bytes(attempt(is_resuming=False) + b"".join(record(*piece) for piece in pieces))
    assert output_log.read(path) == [
        Line(2.0, 2, "10%", 1), Line(2.0, 2, "20%", 1), Line(3.0, 1, "loss 1", 1), Line(4.0, 1, "loss 2", 2),
        Line(4.0, 1, "\ufffd", 2),
    ]  # fmt: skip


def test_what_is_printed_again_after_a_resume_takes_the_place_of_the_first(tmp_path: Path) -> None:
    found = read(
        tmp_path / output_log.NAME, attempt(is_resuming=False), said(0, 1, 2, 3), mark(3, checkpoint=1), said(3, 4, 5, suffix=" lost"),
        attempt(is_resuming=True), said(0), mark(3, resumed=1), said(3, 4, 5, 6), mark(6, checkpoint=2), said(7, 8, suffix=" lost"),
        attempt(is_resuming=True), said(0), mark(6, resumed=2), said(7, 8, 9),
    )  # fmt: skip
    assert found == [(one, f"line {one}") for one in (0, 1, 2, 3, 3, 4, 5, 6, 7, 8, 9)]


def test_what_no_later_attempt_has_come_to_again_stays(tmp_path: Path) -> None:
    found = read(
        tmp_path / output_log.NAME, attempt(is_resuming=False), said(1, 2), mark(2, checkpoint=1), said(3, 4, 5),
        attempt(is_resuming=True), mark(2, resumed=1), said(3, suffix=" again"),
        attempt(is_resuming=True), said(0, 1),
    )  # fmt: skip
    assert found == [(1, "line 1"), (2, "line 2"), (3, "line 3 again"), (4, "line 4"), (5, "line 5")]


def test_an_attempt_from_the_beginning_prints_everything_again(tmp_path: Path) -> None:
    """The first attempt finds its loop in its first batch, and cannot count what that has printed before."""
    found = read(
        tmp_path / output_log.NAME, attempt(is_resuming=False), said(0, 0, 2), attempt(is_resuming=False), said(0, 1),
    )  # fmt: skip
    assert found == [(0, "line 0"), (1, "line 1"), (2, "line 2")]


def test_a_line_that_a_checkpoint_stands_in_is_ended_by_the_resumed_attempt(tmp_path: Path) -> None:
    found = read(
        tmp_path / output_log.NAME, attempt(is_resuming=False), record(0.0, 1, 1, b"lo"), mark(1, checkpoint=1), record(0.0, 2, 1, b"st"),
        attempt(is_resuming=True), mark(1, resumed=1), record(0.0, 2, 1, b"ss 1\n"),
    )  # fmt: skip
    assert found == [(2, "loss 1")]


def test_where_the_mark_of_a_checkpoint_is_missing_batches_tell(tmp_path: Path) -> None:
    found = read(
        tmp_path / output_log.NAME, attempt(is_resuming=False), said(1, 2, 3, suffix=" first"),
        attempt(is_resuming=True), mark(2, resumed=9), said(3),
    )  # fmt: skip
    assert found == [(1, "line 1 first"), (2, "line 2 first"), (3, "line 3")]


def test_what_python_had_collected_is_of_no_known_batch(tmp_path: Path) -> None:
    path = tmp_path / output_log.NAME
    one, many, large = b"prompt\n", b"late\nlate\n", b"late\n" * 2000
    flushed = mark(flushing=True) + record(0.0, 8, 1, one.replace(b"prompt", b"late")) + mark(flushing=False)
    path.write_bytes(
        attempt(is_resuming=False, immediate=(2,)) + record(0.0, 1, 1, one) + record(0.0, 3, 1, many) + record(0.0, 5, 1, large)
        + record(0.0, 6, 2, many.replace(b"late", b"prompt")) + flushed + record(0.0, 9, 1, one)
        + record(0.0, 10, 1, b"late\n" * 1999 + b"la") + record(0.0, 10, 1, b"te\nprompt\n")
    )  # fmt: skip
    assert {(line.text, line.is_prompt) for line in output_log.read(path)} == {("prompt", True), ("late", False)}


def test_what_a_killed_attempt_left_half_written_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / output_log.NAME
    whole = record(1.0, 0, 1, b"one\n")
    for torn in (b"", record(2.0, 0, 1, b"two\n")[:-1], b"\0" * 7):
        path.write_bytes(whole + torn)
        output_log.cut_torn(path)
        assert path.read_bytes() == whole
    for garbage in (b"\0" * 40, b"\1" * 40):
        path.write_bytes(garbage)
        output_log.cut_torn(path)
        assert path.read_bytes() == b""


def test_a_file_that_is_not_there_has_no_lines(tmp_path: Path) -> None:
    output_log.cut_torn(tmp_path / output_log.NAME)
    assert output_log.read(tmp_path / output_log.NAME) == []
