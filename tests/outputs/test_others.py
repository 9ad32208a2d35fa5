"""Files that several ranks make: which of them comes first differs from attempt to attempt."""

import os
import sys
from pathlib import Path

import pytest

from detrain.launch import events
from detrain.outputs.following import OutputFiles


class Job:
    """Two ranks on one disk; each does something in turn."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ranks: list[OutputFiles] = []
        self._acting: OutputFiles | None = None
        (folder / "job").mkdir()
        names = OutputFiles(folder / "job" / "none").handlers()
        events.hear({name: lambda *args, name=name: self._on(name, args) for name in names})

    def _on(self, name, args):
        if self._acting is not None:
            self._acting.handlers()[name](*args)

    def begin(self, *, is_resuming: bool = False) -> None:
        self.end()
        for rank in range(2):
            place = self.folder / "job" / f"rank_{rank}"
            place.mkdir(exist_ok=True)
            self.ranks.append(OutputFiles(place, self.folder / "job"))
        for one in self.ranks:
            one.rewind(is_resuming=is_resuming)

    def end(self) -> None:
        for one in self.ranks:
            one.stop()
        self.ranks.clear()

    def write(self, rank: int, name: str, text: str, mode: str = "w") -> None:
        self._acting = self.ranks[rank]
        with open(self.folder / name, mode, encoding="ascii") as file:
            file.write(text)
        self._acting = None

    def make(self, rank: int, name: str) -> None:
        self._acting = self.ranks[rank]
        os.mkdir(self.folder / name)
        self._acting = None

    def cut(self) -> list[int]:
        return [one.capture() for one in self.ranks]

    def put_back(self, cut: list[int], *ranks: int) -> None:
        offsets = {f"rank_{rank}": offset for rank, offset in enumerate(cut)}
        for rank in ranks:
            others = {name: offset for name, offset in offsets.items() if name != f"rank_{rank}"}
            self.ranks[rank].put_back(cut[rank], is_trusting=False, offsets=others)
            self.ranks[rank].end_rewind()

    def begin_loop(self) -> None:
        for one in self.ranks:
            one.is_in_loop = True


@pytest.fixture
def job(tmp_path: Path):
    one = Job(tmp_path)
    yield one
    one.end()


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_what_another_rank_makes_in_a_later_attempt_is_there_after_a_resume(job, order):
    out = job.folder / "out"
    job.begin()
    job.begin_loop()
    job.write(0, "out", "as it was")
    cut = job.cut()
    job.begin(is_resuming=True)
    assert not out.exists()
    job.write(1, "out", "by the other")  # which came first this time, and the attempt is killed
    job.begin(is_resuming=True)
    assert not out.exists()
    job.write(0, "out", "by the first")
    job.put_back(cut, *order)
    assert out.read_text() == "as it was"


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_what_nobody_had_at_the_cut_goes(job, order):
    job.begin()
    job.begin_loop()
    cut = job.cut()
    job.write(0, "late", "0")
    job.write(1, "late", "1", "a")
    job.begin(is_resuming=True)
    job.put_back(cut, *order)
    assert not (job.folder / "late").exists()


def test_set_up_code_finds_nothing_where_one_rank_had_made_what_the_other_changed(job):
    job.begin()
    job.begin_loop()
    job.write(0, "log", "first\n")
    job.write(1, "log", "second\n", "a")
    cut = job.cut()
    job.begin(is_resuming=True)
    assert not (job.folder / "log").exists()
    job.put_back(cut, 0, 1)
    assert (job.folder / "log").read_text() == "first\nsecond\n"


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_log_that_all_append_to_has_each_line_once(job, order):
    log = job.folder / "log"
    job.begin()
    job.begin_loop()
    for rank in range(2):
        job.write(rank, "log", f"first of {rank}\n", "a")
    cut = job.cut()
    job.write(1, "log", "late\n", "a")
    job.write(0, "log", "late\n", "a")
    for _ in range(2):  # killed on its way to the cut, and again
        job.begin(is_resuming=True)
        assert not log.exists()
    job.write(1, "log", "", "a")  # opened by set-up code
    job.put_back(cut, *order)
    assert log.read_text() == "first of 0\nfirst of 1\n"


def test_what_no_rank_has_kept_is_left_and_said(job, capsys, monkeypatch):
    monkeypatch.setattr(sys, "__stderr__", sys.stderr)
    job.begin()
    job.begin_loop()
    for rank in range(2):
        job.write(rank, "log", f"first of {rank}\n", "a")
    cut = job.cut()
    for rank in range(2):
        job.write(rank, "log", "late\n", "a")
    job.end()
    (job.folder / "log").write_text("by somebody else")
    job.begin(is_resuming=True)
    job.put_back(cut, 0, 1)
    assert "log is left as it is: " in capsys.readouterr().err
    assert (job.folder / "log").read_text() == "by somebody else"


@pytest.mark.parametrize("maker", [0, 1])
def test_a_folder_that_one_makes_and_both_fill_is_not_there_when_set_up_begins_again(job, maker):
    out = job.folder / "out"
    job.begin()
    job.make(maker, "out")
    job.write(0, "out/0", "of the first")
    job.begin_loop()
    cut = job.cut()
    job.write(1, "out/1", "late")
    job.begin(is_resuming=True)
    assert not out.exists()
    job.make(1 - maker, "out")
    job.put_back(cut, 1, 0)
    assert [path.name for path in out.iterdir()] == ["0"]
    assert (out / "0").read_text() == "of the first"


def test_a_torn_journal_of_another_rank_is_left_as_it_is(job):
    job.begin()
    job.write(0, "out", "x")
    journal = job.folder / "job" / "rank_0" / "files.log"
    job.end()
    torn = journal.read_bytes() + b'[7, "half'
    journal.write_bytes(torn)
    OutputFiles(job.folder / "job" / "rank_1", job.folder / "job").rewind(is_resuming=False)
    assert journal.read_bytes() == torn
