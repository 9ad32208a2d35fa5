"""The publisher in this process: what it says, what it waits for, when it stops."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("fsspec", reason="runs in remote storage need fsspec")

from detrain.errors import ResumeRefused, UsageError
from detrain.remote import byhand, listing, publish, waiting
from detrain.remote import manifest as manifests
from detrain.remote.fetch import fetch
from detrain.remote.lease import Lost
from detrain.remote.publish import Publication
from detrain.remote.side import Side, State
from detrain.remote.snapshot import NotNow
from detrain.store.commit import commit
from detrain.store.directory import RunDirectory
from detrain.store.record import RunRecord
from tests.remote.faulty import Faulty, Plan, store_of
from tests.store.conftest import make_meta, make_tree


class Place:
    """A run directory on one machine."""

    def __init__(self, folder: Path, began: str = "now") -> None:
        self.directory = folder / "train"
        self.directory.mkdir(parents=True)
        self.began = began
        self.record(1)

    def record(self, attempts: int) -> None:
        record = RunRecord(script="/work/train.py", began=self.began, process=7, attempts=attempts)
        RunDirectory(self.directory).write_record(record)

    def save(self, sequence: int) -> None:
        tree = make_tree({"a": np.arange(4) + sequence})
        commit(self.directory / f"checkpoint_0_{sequence}.h5", tree, replace(make_meta(sequence), files=0))

    def publication(self, system: Faulty) -> Publication:
        return Publication(self.directory, store_of(system))


def begun(tmp_path: Path) -> tuple[Faulty, Place, Publication]:
    """A store, a run with one checkpoint, and its publication, which has the lease."""
    system, here = Faulty(), Place(tmp_path / "a")
    here.save(1)
    publication = here.publication(system)
    publication.begin(is_fresh=False)
    return system, here, publication


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda _: None)
    monkeypatch.setattr(publish, "_LONGEST_BEGIN_S", 0.0)
    monkeypatch.setattr("time.sleep", lambda _: None)
    monkeypatch.setattr(Publication, "_wait", lambda *_, **__: None)


def test_it_ends_when_everything_is_published(tmp_path: Path) -> None:
    system, _here, publication = begun(tmp_path)
    publication.watch()
    manifest = manifests.read(store_of(system))
    assert manifest is not None
    assert list(manifest.checkpoints) == ["checkpoint_0_1.h5"]
    assert not [name for name in system.objects if "/leases/" in name]
    state = publication.side.read_state()
    assert state is not None
    assert state.is_over


def test_it_ends_and_gives_the_lease_back_where_the_run_has_been_deleted(tmp_path: Path) -> None:
    system, here, publication = begun(tmp_path)
    shutil.rmtree(here.directory.parent)
    ended: list[bool] = []
    publication.watch(lambda: ended.append(True))
    assert not ended
    assert not [name for name in system.objects if "/leases/" in name]
    assert not here.directory.parent.exists()


def test_trouble_is_said_once_and_caught_up(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    system, _here, publication = begun(tmp_path)
    system.plan = Plan(dict.fromkeys(range(6), "refused"))
    publication.watch()
    said = capfd.readouterr().err
    assert said.count("[remote-behind]") == 1
    assert "publications have failed since" in said
    assert "is published to again" in said
    assert manifests.read(store_of(system)) is not None


def test_another_machine_goes_on_and_the_first_one_stops(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    system, here, there = Faulty(), Place(tmp_path / "a"), tmp_path / "b" / "train"
    here.save(1)
    first = here.publication(system)
    first.begin(is_fresh=False)
    first.publish_once()
    first.side_clear()
    second = Publication(there, store_of(system))
    second.begin(is_fresh=False)
    assert (there / "checkpoint_0_1.h5").read_bytes() == (here.directory / "checkpoint_0_1.h5").read_bytes()
    here.save(2)
    with pytest.raises(Lost):
        first._lease.renew()
    first._has_lost = True  # as the thread that renews it notes
    first.watch()
    assert "[remote-lost]" in capfd.readouterr().err
    manifest = manifests.read(store_of(system))
    assert manifest is not None
    assert manifest.sequence == 1


def test_a_run_that_goes_on_elsewhere_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system, _here, first = begun(tmp_path)

    def renew(_: float) -> None:
        first._lease.renew()

    monkeypatch.setattr("time.sleep", renew)
    with pytest.raises(ResumeRefused, match="is going on: it is held by process"):
        Publication(tmp_path / "b" / "train", store_of(system)).begin(is_fresh=False)


def test_both_have_gone_on(tmp_path: Path) -> None:
    system, here, first = begun(tmp_path)
    first.watch()
    there = Publication(tmp_path / "b" / "train", store_of(system))
    there.begin(is_fresh=False)
    tree = make_tree({"a": np.arange(4)})
    commit(tmp_path / "b/train/checkpoint_0_5.h5", tree, replace(make_meta(5), files=0))
    there.watch()
    here.save(2)
    with pytest.raises(ResumeRefused, match="both have gone on"):
        here.publication(system).begin(is_fresh=False)
    assert not [name for name in system.objects if "/leases/" in name]


def test_fresh_keeps_the_run_that_was_there(tmp_path: Path) -> None:
    system, _here, first = begun(tmp_path)
    first.watch()
    other = Place(tmp_path / "b", began="before")
    second = other.publication(system)
    second.begin(is_fresh=True)
    other.began = "later"
    other.record(1)
    other.save(1)
    other.save(2)
    second.watch()
    (kept,) = manifests.read_kept(store_of(system))
    assert kept.run.began == "now"
    fetch(store_of(system), kept, tmp_path / "kept")
    now = manifests.read(store_of(system))
    assert now is not None
    assert (now.run.began, now.sequence) == ("later", 2)


def test_the_run_that_fresh_is_about_to_move_aside_is_not_published(tmp_path: Path) -> None:
    system, here = Faulty(), Place(tmp_path / "a")
    here.save(1)
    publication = here.publication(system)
    publication.begin(is_fresh=True)
    with pytest.raises(NotNow, match="not started over"):
        publication.publish_once()
    here.began = "later"
    here.record(1)
    assert publication.publish_once().run.began == "later"
    assert not manifests.read_kept(store_of(system))


def test_a_training_that_begins_anew_by_itself_keeps_what_was_published(tmp_path: Path) -> None:
    system, here, publication = begun(tmp_path)
    publication.publish_once()
    here.began = "later"
    here.record(1)
    here.save(2)
    publication.publish_once()
    assert [kept.run.began for kept in manifests.read_kept(store_of(system))] == ["now"]


def test_a_store_that_does_not_answer_stops_the_beginning(tmp_path: Path) -> None:
    system, here = Faulty(), Place(tmp_path / "a")
    system.plan = Plan(dict.fromkeys(range(50), "refused"))
    with pytest.raises(UsageError, match="cannot be used: ConnectionRefusedError"):
        here.publication(system).begin(is_fresh=False)


def test_a_damaged_store_is_no_new_run(tmp_path: Path) -> None:
    system, _here, first = begun(tmp_path)
    first.watch()
    for name in list(system.objects):
        if "checkpoint" in name:
            del system.objects[name]
    with pytest.raises(ResumeRefused, match="no checkpoint can be used"):
        Publication(tmp_path / "b" / "train", store_of(system)).begin(is_fresh=False)
    assert not (tmp_path / "b" / "train").exists()


def test_push_pull_and_ls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system, here = Faulty(), Place(tmp_path / "a")
    here.save(1)
    for module in (byhand, listing):
        monkeypatch.setattr(module, "open_store", lambda _: store_of(system))
    byhand.push(here.directory, "s3://bucket/run")
    byhand.pull("s3://bucket/run", tmp_path / "copy")
    assert (tmp_path / "copy/checkpoint_0_1.h5").is_file()
    (run,) = listing.describe_all("s3://bucket/run")
    assert json.loads(json.dumps(run))["checkpoints"][0]["file"] == "checkpoint_0_1.h5"
    assert "checkpoint_0_1.h5" in listing.format_run(run)
    with pytest.raises(ResumeRefused, match="a run in"):
        byhand.pull("s3://bucket/run", tmp_path / "copy")
    with pytest.raises(UsageError, match="no checkpoint"):
        byhand.push(tmp_path, "s3://bucket/run")


def test_the_end_of_a_training_waits_for_its_last_checkpoint(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    system, here = Faulty(), Place(tmp_path / "a")
    here.save(1)
    waiting.wait_until_published(here.directory, "s3://bucket/run", 0.0)
    assert "checkpoint_0_1.h5 of" in capfd.readouterr().err  # nobody publishes
    side = Side(here.directory)
    side.write_state(State(1, {}, "the network is down"))
    waiting.wait_until_published(here.directory, "s3://bucket/run", 0.0)
    assert "is not in s3://bucket/run yet (the network is down); process 1 goes on" in capfd.readouterr().err
    publication = here.publication(system)
    publication.begin(is_fresh=False)
    publication.watch()
    waiting.wait_until_published(here.directory, "s3://bucket/run", 0.0)
    said = capfd.readouterr().err
    assert said.count("the first checkpoint is in s3://bucket/run: from now on the run can go on elsewhere") == 1
    assert said.endswith("detrain: published in s3://bucket/run, up to checkpoint_0_1.h5\n")
    here.save(2)
    later = here.publication(system)
    later.begin(is_fresh=False)
    later.watch()
    assert "the first checkpoint" not in capfd.readouterr().err  # there was one
