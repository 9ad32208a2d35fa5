"""A snapshot taken while the script goes on: on another machine its files are those of the checkpoint."""

import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("fsspec", reason="runs in remote storage need fsspec")

from detrain.launch import events
from detrain.outputs import journal
from detrain.outputs.following import OutputFiles
from detrain.remote import outputs
from detrain.remote.snapshot import NotNow, Snapshot, Snapshots
from detrain.store.commit import commit
from detrain.store.directory import RunDirectory
from detrain.store.record import RunRecord
from tests.outputs.test_following import _act, permitted_world, world, write
from tests.store.conftest import make_meta, make_tree
from tests.tiers import full_but


class Run:
    """A run directory beside a working folder, and what a script does in that."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.directory = folder, folder / "run"
        self.directory.mkdir()
        self.snapshots = Snapshots(self.directory, folder / "staging")
        self.offsets: dict[str, int] = {}
        self.worlds: dict[str, dict[str, tuple[str, object, str]]] = {}
        self.files: OutputFiles | None = None
        self.write_record(1)

    def write_record(self, attempts: int) -> None:
        record = RunRecord(script="/nowhere/train.py", began="now", process=7, attempts=attempts)
        RunDirectory(self.directory).write_record(record)

    def begin(self, *, is_resuming: bool = False) -> OutputFiles:
        if self.files is not None:
            self.files.stop()
        self.files = OutputFiles(self.directory)
        self.files.rewind(is_resuming=is_resuming)
        events.hear(self.files.handlers())
        return self.files

    def save(self) -> str:
        """A checkpoint; the last two stay."""
        assert self.files is not None
        sequence = len(self.offsets) + 1
        name = f"checkpoint_0_{sequence}.h5"
        self.worlds[name] = permitted_world()
        self.offsets[name] = self.files.capture()
        tree = make_tree({"a": np.arange(4) + sequence})
        with self.files._blind():
            commit(self.directory / name, tree, replace(make_meta(sequence), files=self.offsets[name]))
            for old in list(self.offsets)[:-2]:
                (self.directory / old).unlink(missing_ok=True)
        self.files.retain(list(self.offsets.values())[-2:])
        return name

    def take(self, *, is_going_on: bool = True) -> Snapshot:
        assert self.files is not None
        with self.files._blind():
            return self.snapshots.take(is_going_on=is_going_on)

    def move(self, snapshot: Snapshot) -> str:
        """Another machine, which has what the snapshot has; returns its newest checkpoint."""
        assert self.files is not None
        self.files.stop()
        self.files = None
        other = self.folder / "other"
        for item in snapshot.items:
            (other / item.name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(item.path, other / item.name)
        shutil.rmtree(self.directory)
        other.rename(self.directory)
        return max(snapshot.checkpoints, key=lambda name: snapshot.checkpoints[name].sequence)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    monkeypatch.setattr("os.fsync", lambda _: None)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    run = Run(tmp_path)
    yield run
    if run.files is not None:
        run.files.stop()


def empty_folder() -> None:
    for entry in os.listdir("."):
        shutil.rmtree(entry) if os.path.isdir(entry) and not os.path.islink(entry) else os.remove(entry)


def test_there_is_nothing_to_publish_before_the_first_checkpoint(run: Run) -> None:
    run.begin()
    with pytest.raises(NotNow):
        run.take()


def test_nothing_is_published_while_an_attempt_resumes(run: Run) -> None:
    files = run.begin()
    files.is_in_loop = True
    write("log", "1\n", "a")
    run.save()
    files = run.begin(is_resuming=True)
    with pytest.raises(NotNow):
        run.take()
    assert [item.name for item in run.take(is_going_on=False).items if item.name == "rewinding"]


def test_a_checkpoint_that_lacks_a_file_is_not_published(run: Run) -> None:
    files = run.begin()
    files.is_in_loop = True
    run.save()
    path = run.directory / run.save()
    path.write_bytes(path.read_bytes()[:-1])
    assert list(run.take().checkpoints) == ["checkpoint_0_1.h5"]


def test_a_log_that_grows_meanwhile_is_as_long_as_at_the_checkpoint(run: Run) -> None:
    files = run.begin()
    write("log", "header\n")
    files.is_in_loop = True
    write("log", "1\n", "a")
    run.save()
    write("log", "2\n", "a")
    name = run.move(run.take())
    empty_folder()
    files = run.begin(is_resuming=True)
    write("log", "header\n")
    files.put_back(run.offsets[name], is_trusting=False)
    assert world() == {"./log": ("file", b"header\n1\n")}


def test_files_of_a_finished_run_are_made_again(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    files = run.begin()
    files.is_in_loop = True
    write("out/log", "1\n", "a")
    os.symlink("log", "out/latest")
    run.save()
    write("out/log", "2\n", "a")
    write("model", "end")
    (run.directory / "finished").write_text("now\n")
    before = permitted_world()
    run.move(run.take(is_going_on=False))
    empty_folder()
    outputs.give_back(run.directory)
    assert permitted_world() == before
    write("model", "mine")
    outputs.give_back(run.directory)
    assert "model is another than the run has left" in capfd.readouterr().err
    assert Path("model").read_text() == "mine"


def between(run: Run, act: Callable[[], None]) -> None:
    """Have the script go on between any two steps of a snapshot."""
    for name in ("_link_checkpoints", "_copy_outputs", "_copied", "_copy_journal", "_copy_kept"):
        step = getattr(run.snapshots, name)

        def stepped(*words: object, _step: Callable[..., object] = step, **more: object) -> object:
            assert run.files is not None
            blind, run.files._blind_thread = run.files._blind_thread, 0
            act()
            run.files._blind_thread = blind
            result = _step(*words, **more)
            blind, run.files._blind_thread = run.files._blind_thread, 0
            act()
            run.files._blind_thread = blind
            return result

        setattr(run.snapshots, name, stepped)


@pytest.mark.parametrize("seed", full_but(range(25), range(150)))
def test_whatever_the_script_does_meanwhile(run: Run, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(chance.randrange(4)):
        _act(random.Random(chance.random()))  # was there before
    shutil.copytree(".", run.folder / "given", symlinks=True)

    def set_up() -> None:
        os.makedirs("f", exist_ok=True)
        write("f/config", "fixed")
        write("a", "header")
        write("a", "more", "a")

    files = run.begin()
    set_up()
    files.is_in_loop = True

    def act() -> None:
        for _ in range(chance.randrange(3)):
            _act(chance)
        if chance.randrange(12) == 0:
            run.save()

    for _ in range(chance.randrange(1, 4)):
        act()
        run.save()
    act()
    between(run, act)
    try:
        snapshot = run.take()
    except NotNow:
        pytest.skip("the script was quicker than the snapshot")
    name = run.move(snapshot)
    empty_folder()
    changed = None
    if chance.randrange(2):
        shutil.copytree(run.folder / "given", ".", symlinks=True, dirs_exist_ok=True)
    else:  # what was there before, and was never changed, is the user's to bring
        changed = {os.path.join(".", os.path.relpath(path)) for path in journal.paths_in(run.directory)}
    files = run.begin(is_resuming=True)
    set_up()
    files.is_in_loop = True
    files.put_back(run.offsets[name], is_trusting=False)
    now, then = (
        {path: look for path, look in one.items() if changed is None or path in changed}
        for one in (permitted_world(), run.worlds[name])
    )
    assert now == then
