"""Where a run is, by a ledger that grows while it is looked at."""

import io
import json

import pytest
from click.testing import CliRunner

from detrain.cli.top import top
from detrain.errors import UsageError
from detrain.report.now import Watched, duration_text
from detrain.store import ledger
from detrain.store.ledger import Batch, LedgerFile, Tail


class Run:
    """A run directory without a process; each epoch has ten batches, and each batch takes half a second."""

    def __init__(self, path):
        path.mkdir()
        (path / "run.json").write_text("{}")
        self.path, self.file, self.batches = path, LedgerFile(path / "ledger"), 0

    def begin(self, attempt, batches, lengths):
        self.batches = batches
        self.file.append_json(
            b"A", {"attempt": attempt, "batches": batches, "at": 1000.0 + batches / 2, "lengths": lengths}
        )

    def train(self, until, *, has_losses=True):
        while self.batches < until:
            self.batches += 1
            epoch, batch = divmod(self.batches - 1, 10)
            record = Batch(self.batches, 1, epoch + 1, batch + 1)
            losses = ledger.encode_losses(1000.0 + self.batches / 2, [(self.batches, 0, 1 / self.batches)])
            self.file.append_all((b"B", record.encode()), *([(b"V", losses)] if has_losses else []))

    def save(self, stall_s=0.1):
        name, at_s = f"checkpoint_0_{self.batches}.h5", 1000.0 + self.batches / 2
        self.file.append_json(
            b"S",
            {
                "name": name,
                "batches": self.batches,
                "at": at_s,
                "stall_s": stall_s,
                "bytes": 1,
                "seconds": self.batches / 2,
            },
        )


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path / "train")


@pytest.fixture
def is_held(monkeypatch):
    monkeypatch.setattr("detrain.store.directory.RunDirectory.holder", lambda _: "attempt 1")


def test_nothing_is_known_before_the_first_record(run):
    now = Watched(run.path).look(1000.0)
    assert (now.state, now.attempt, now.batches, now.loss, now.left_s, now.checkpoint) == (
        "stopped",
        0,
        0,
        None,
        0.0,
        "",
    )


@pytest.mark.usefixtures("is_held")
def test_each_look_reads_what_is_new(run):
    watched = Watched(run.path)
    run.begin(1, 0, [["epoch", 4], ["batch", -1]])
    run.train(5)
    now = watched.look(1002.5)
    assert (now.state, now.epoch, now.num_epochs, now.batch, now.num_batches, now.batches) == ("running", 0, 4, 5, 0, 5)
    assert now.left_s == 0  # nobody knows yet how long an epoch is
    run.save()
    run.train(15)
    now = watched.look(1007.5)
    assert (now.epoch, now.batch, now.num_batches, now.batches_per_s, now.loss) == (1, 5, 10, 2.0, 1 / 15)
    assert (now.checkpoint, now.checkpoint_age_s, now.checkpoint_share) == (
        "checkpoint_0_5.h5",
        5.0,
        pytest.approx(0.04),
    )
    assert now.left_s == 25 / 2
    run.begin(2, 12, [["epoch", 4], ["batch", 10]])  # it was killed
    run.train(14)
    now = watched.look(1007.0)
    assert (now.attempt, now.batches, now.batches_per_s) == (2, 14, 2.0)


@pytest.mark.usefixtures("is_held")
def test_one_loop_alone_and_loops_around_epochs(run, tmp_path):
    run.begin(1, 0, [["batch", 40]])
    run.train(10)
    assert Watched(run.path).look(1005.0).left_s == 15.0
    folds = Run(tmp_path / "folds")
    folds.begin(1, 0, [["outer", 3], ["epoch", 4], ["batch", 10]])
    folds.train(10)
    now = Watched(folds.path).look(1005.0)
    assert (now.num_epochs, now.num_batches, now.left_s) == (0, 10, 0.0)


@pytest.mark.usefixtures("is_held")
def test_where_no_losses_are_read_the_pace_is_that_of_the_looks(run):
    watched = Watched(run.path)
    run.begin(1, 0, [["batch", 40]])
    run.train(10, has_losses=False)
    watched.look(1005.0)
    run.train(20, has_losses=False)
    assert watched.look(1010.0).batches_per_s == 2.0


@pytest.mark.usefixtures("is_held")
def test_records_of_some_batches_say_how_long_an_epoch_is(run):
    run.begin(1, 0, [["epoch", 4]])
    for batches, epochs, batch in ((3, 1, 3), (12, 2, 2), (27, 3, 7), (40, 4, 0)):
        run.file.append(b"B", Batch(batches, 1, epochs, batch).encode())
    now = Watched(run.path).look(1020.0)
    assert (now.epoch, now.batch, now.num_batches) == (
        3,
        0,
        10,
    )  # at the first header of the last epoch, or behind it: nothing tells
    run.file.append(b"B", Batch(38, 2, 4, 8).encode())
    run.file.append(b"B", Batch(40, 3, 4, 0).encode())
    now = Watched(run.path).look(1020.0)
    assert (now.epoch, now.batch, now.num_batches) == (3, 10, 10)


def test_a_tail_leaves_what_is_half_written_and_begins_again_with_another_file(tmp_path):
    path = tmp_path / "ledger"
    tail = Tail(path)
    assert tail.read() == []
    file = LedgerFile(path)
    file.append_json(b"A", {"attempt": 1})
    file.append_json(b"A", {"attempt": 2})
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    assert [json.loads(body)["attempt"] for _, body in tail.read()] == [1]
    path.write_bytes(whole)
    assert [json.loads(body)["attempt"] for _, body in tail.read()] == [2]
    assert tail.read() == []
    path.unlink()
    LedgerFile(path).append_json(b"A", {"attempt": 3})
    assert [json.loads(body)["attempt"] for _, body in tail.read()] == [3]


def test_the_command(run, tmp_path):
    run.begin(3, 0, [["epoch", 4], ["batch", 10]])
    run.train(15)
    run.save()
    done = CliRunner().invoke(top, [str(tmp_path)])
    assert done.output == (
        f"{run.path}\n  stopped (3), epoch 1/4, batch 5/10, loss 0.06667, checkpoint 0_15, wait 1.3%\n"
    )
    (found,) = json.loads(CliRunner().invoke(top, [str(tmp_path), "--json"]).output)
    assert (found["state"], found["batches"]) == ("stopped", 15)
    assert isinstance(CliRunner().invoke(top, [str(tmp_path / "train" / "cache")]).exception, UsageError)
    (tmp_path / "empty").mkdir()
    assert "no runs in" in CliRunner().invoke(top, [str(tmp_path / "empty")]).output


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (42.4, "42 s"),
        (59.7, "1 min 0 s"),
        (200, "3 min 20 s"),
        (18_720, "5 h 12 min"),
        (183_600, "2 d 3 h"),
    ],
)
def test_times_as_a_person_says_them(seconds, text):
    assert duration_text(seconds) == text


def test_a_finished_run_has_all_its_epochs(run):
    run.begin(1, 0, [["epoch", 2], ["batch", 10]])
    run.train(20)
    run.save()
    assert Watched(run.path).look(1011.0).text().startswith("stopped, epoch 1/2, batch 10/10")
    (run.path / "finished").write_text("now\n")
    assert Watched(run.path).look(1011.0).text().startswith("finished, epoch 2/2, batch 10/10")


@pytest.mark.parametrize(("width", "is_shown"), [(50, False), (120, True)])
def test_a_narrow_terminal_has_the_name_on_one_line(run, tmp_path, width, is_shown):
    from rich.console import Console

    from detrain.cli.top import _table

    long = Run(tmp_path / "train-lr-0.003-a2c98f84")
    for one in (run, long):
        one.begin(1, 0, [["epoch", 2], ["batch", 10]])
        one.train(12)
    console = Console(width=width, file=io.StringIO())
    console.print(_table([Watched(one.path).look(1011.0) for one in (run, long)], width))
    lines = [line for line in console.file.getvalue().splitlines() if line.strip()]
    assert len(lines) == 4  # headings, a line below them, and one for each run
    assert lines[-1].split()[0].startswith("train-lr-0")
    assert ("checkpoint" in lines[0]) is is_shown
    assert "12/" not in lines[-1]
    assert "2/10" in lines[-1]


@pytest.mark.usefixtures("is_held")
def test_a_checkpoint_that_is_durable_later_is_no_pace(run):
    watched = Watched(run.path)
    run.begin(1, 0, [["batch", 40]])
    run.train(10)
    run.file.append_json(b"S", {"name": "c.h5", "batches": 4, "at": 1005.5, "stall_s": 0.1, "bytes": 1, "seconds": 5.5})
    assert watched.look(1005.5).batches_per_s == 2.0


@pytest.mark.usefixtures("is_held")
def test_until_the_training_begins_the_position_of_the_attempt_before_is_not_shown(run):
    watched = Watched(run.path)
    (run.path / "lock").write_text("process 7 on host since 1970-01-01 00:15:00 +0000\n")
    assert watched.look(1000.0).text() == "running"
    run.begin(1, 0, [["epoch", 4], ["batch", 10]])
    run.train(15)
    assert watched.look(1007.5).text().startswith("running, epoch 1/4, batch 5/10, batches/s 2")
    (run.path / "lock").write_text("process 8 on host since 1970-01-01 01:16:50 +0100\n")  # killed, and started again
    assert watched.look(1012.0).text() == "running"
    run.begin(2, 24, [["epoch", 4], ["batch", 10]])
    assert watched.look(1013.0).text().startswith("running (2), epoch 0/4")
