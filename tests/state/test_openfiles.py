"""What a file object was opened with, and what stands on it, is found again."""

import csv

import pytest

from detrain.state import csvfiles, openfiles


def content_of(path, newline):
    with open(path, newline=newline) as file:
        return file.read()


@pytest.mark.parametrize("content", ["a\r\nb\nc\r\n" * 4000, "\n", "", "\r\n"])
@pytest.mark.parametrize("newline", [None, "", "\n", "\r", "\r\n"])
def test_line_end_that_a_file_was_opened_with(tmp_path, newline, content):
    (tmp_path / "lines").write_bytes(content.encode())
    with open(tmp_path / "lines", newline=newline) as file:
        assert openfiles._line_end(file) == newline
        file.read(1)
        assert openfiles._line_end(file) == newline
        rest = file.read()
        assert openfiles._line_end(file) == newline
        file.seek(0)
        assert file.read(1) + file.read() == content_of(tmp_path / "lines", newline)
        assert rest == content_of(tmp_path / "lines", newline)[1:]


def test_where_a_csv_reader_keeps_its_number_of_lines_is_known():
    reader = csv.reader(iter(["a;b", '"c', 'd";e']), delimiter=";")
    assert list(reader) == [["a", "b"], ["cd", "e"]]
    assert reader.line_num == 3
    assert csvfiles._place_of_line_num() is not None
