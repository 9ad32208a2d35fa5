"""What a script printed, as the preload noted it."""

from __future__ import annotations

import struct
from pathlib import Path

from detrain.store import printed
from detrain.store.printed import Line


def record(at_s: float, stream: int, text: bytes) -> bytes:
    return struct.pack("<dII", at_s, stream, len(text)) + text


def test_lines_are_put_together_by_stream(tmp_path: Path) -> None:
    path = tmp_path / printed.NAME
    pieces = [(1.0, 1, b"lo"), (2.0, 2, b"10%\r20%\r"), (3.0, 1, b"ss 1\nloss"), (4.0, 1, b" 2\n\n\xff\nrest")]
    path.write_bytes(b"".join(record(*piece) for piece in pieces))
    assert list(printed.read(path)) == [
        Line(2.0, 2, "10%"), Line(2.0, 2, "20%"), Line(3.0, 1, "loss 1"), Line(4.0, 1, "loss 2"), Line(4.0, 1, "\ufffd"),
    ]  # fmt: skip


def test_what_a_killed_attempt_left_half_written_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / printed.NAME
    whole = record(1.0, 1, b"one\n")
    for torn in (b"", record(2.0, 1, b"two\n")[:-1], b"\0" * 7):
        path.write_bytes(whole + torn)
        printed.cut_torn(path)
        assert path.read_bytes() == whole
    path.write_bytes(b"\0" * 40)
    printed.cut_torn(path)
    assert path.read_bytes() == b""


def test_a_file_that_is_not_there_has_no_lines(tmp_path: Path) -> None:
    printed.cut_torn(tmp_path / printed.NAME)
    assert list(printed.read(tmp_path / printed.NAME)) == []
