"""The position of a text file in the middle of an iteration is the one from which the rest is read."""

import gzip

import pytest

from detrain.state.handlers import positions

TEXTS = {
    "ascii": "".join(f"{number},{number % 7}\n" for number in range(20000)),
    "two and three bytes": "".join(f"{number} äß€ {'ö' * (number % 5)}\n" for number in range(9000)),
    "one long line after short ones": "a\n" * 10 + "b" * 50000 + "\nc\nd",
    "short": "a\nb\nc",
    "the same again and again": "x\n" * 30000,
    "empty lines": "\n" * 30000,
}


@pytest.mark.parametrize("newline", [None, "", "\n"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "latin-1"])
@pytest.mark.parametrize("text", TEXTS)
def test_position_in_the_middle_of_an_iteration(tmp_path, text, encoding, line_end, newline):
    content = TEXTS[text].replace("€", "e") if encoding == "latin-1" else TEXTS[text]
    path = tmp_path / "lines"
    path.write_bytes(content.replace("\n", line_end).encode(encoding))
    with (
        open(path, encoding=encoding, newline=newline) as file,
        open(path, encoding=encoding, newline=newline) as other,
    ):
        lines = list(file)
        file.seek(0)
        for number, line in enumerate(file):
            assert line == lines[number]
            if number % 1777 == 2 or number == len(lines) - 1:
                other.seek(positions.tell(file))
                assert list(other) == lines[number + 1 :]


def test_position_in_a_compressed_file(tmp_path):
    with gzip.open(tmp_path / "lines.gz", "wt") as file:
        file.write(TEXTS["two and three bytes"])
    with gzip.open(tmp_path / "lines.gz", "rt") as file:
        lines = [next(file) for _ in range(1234)]
        with pytest.raises(OSError, match="next"):
            file.tell()
        assert positions.tell(file) == len("".join(lines).encode())
        assert next(file).startswith("1234 ")


def test_position_of_a_file_that_is_written_to_is_not_guessed(tmp_path):
    with open(tmp_path / "lines", "w+") as file:
        file.write(TEXTS["short"])
        file.seek(0)
        next(file)
        with pytest.raises(OSError, match="next"):
            positions.tell(file)
