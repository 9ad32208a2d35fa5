"""What a file object was opened with, and what stands on it, is found again."""

import csv
import io

import pytest

import detrain.state.handlers.standard  # noqa: F401 - registers the handlers
from detrain.state.handlers import csvfiles, openfiles
from detrain.state.restore import Origins, Restore
from detrain.state.walk import Walk


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


@pytest.mark.parametrize("newline", [None, "", "\n", "\r\n"])
@pytest.mark.parametrize("is_made_by_the_loop", [True, False])
def test_a_text_file_in_memory_comes_back(newline, is_made_by_the_loop):
    file = io.StringIO(newline=newline)
    file.write("a\nb\r\nc")
    file.seek(2)
    walk = Walk()
    walk.root("file", file)
    captured = walk.run()
    live = Walk()
    now = {} if is_made_by_the_loop else {"file": io.StringIO("something else")}
    for name, value in now.items():
        live.root(name, value)
    here = live.run()
    made = Restore(captured.tree, here, Origins(here)).run(now)["file"]
    assert (made.tell(), made.getvalue()) == (2, file.getvalue())
    assert not now or made is now["file"]
    for one in (file, made):
        one.write("d\n")
    assert (made.readlines(), made.getvalue()) == (file.readlines(), file.getvalue())
