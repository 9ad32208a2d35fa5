"""Jobs of several ranks in a store: what is published is a cut with the parts of all ranks."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("fsspec", reason="runs in remote storage need fsspec")

from detrain.errors import UsageError
from detrain.job.place import place_of
from detrain.remote import listing, publish, together, waiting
from detrain.remote import manifest as manifests
from detrain.remote.jobs import JobSnapshots
from detrain.remote.publish import Publication
from detrain.remote.runs import published
from detrain.remote.side import State
from detrain.remote.snapshot import NotNow
from detrain.store.checkpoint import fingerprint
from detrain.store.commit import commit
from detrain.store.job import Held, JobDirectory, Manifest
from detrain.store.record import RunRecord
from tests.remote.faulty import Faulty, store_of
from tests.remote.test_machines import Machine, loses_nothing
from tests.store.conftest import make_meta, make_tree


class Job:
    """The directory of a job of two ranks on one machine."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "train"
        self.directory = JobDirectory(self.path)
        self.directory.begin(2)
        for number in range(2):
            record = RunRecord(script="/work/train.py", began="now", process=7 + number, attempts=1)
            self.directory.rank(number).path.mkdir()
            self.directory.rank(number).write_record(record)

    def save(self, number: int, sequence: int) -> Path:
        """A rank's part of a cut."""
        path = self.directory.rank(number).path / f"checkpoint_0_{sequence}.h5"
        commit(path, make_tree({"a": np.arange(4) + sequence + 10 * number}), replace(make_meta(sequence), files=0))
        return path

    def cut(self, sequence: int) -> None:
        parts = [self.save(number, sequence) for number in range(2)]
        held = tuple(Held(n, "here", str(path.parent), fingerprint(path)) for n, path in enumerate(parts))
        self.directory.manifests.write(Manifest(parts[0].name, sequence, 0, sequence, sequence, (), held))

    def files(self) -> dict[str, bytes]:
        return {str(path.relative_to(self.path)): path.read_bytes() for path in self.path.rglob("*.h5")}


def two_cuts(tmp_path: Path) -> tuple[Faulty, Job]:
    """A store, and a job with two cuts that is published there."""
    system, job = Faulty(), Job(tmp_path / "a")
    job.cut(1)
    job.cut(2)
    publication = Publication(job.path, store_of(system))
    publication.begin(is_fresh=False)
    publication.watch()
    return system, job


def fetched(system: Faulty, folder: Path) -> JobDirectory:
    """On another machine."""
    there = Publication(folder / "train", store_of(system))
    there.begin(is_fresh=False)
    there.side_clear()
    return JobDirectory(folder / "train")


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda _: None)
    monkeypatch.setattr(publish, "_LONGEST_BEGIN_S", 0.0)
    monkeypatch.setattr("time.sleep", lambda _: None)


def test_a_job_is_fetched_as_it_was(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    system, job = two_cuts(tmp_path)
    there = fetched(system, tmp_path / "b")
    assert there.size() == 2
    assert [cut.sequence for cut in there.manifests.read()] == [2, 1]
    assert {str(path.relative_to(there.path)): path.read_bytes() for path in there.path.rglob("*.h5")} == job.files()
    waiting.wait_until_published(job.path, "s3://bucket/run", 0.0)
    assert "[remote" not in capfd.readouterr().err


def test_a_cut_is_listed_with_the_bytes_of_its_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system, job = two_cuts(tmp_path)
    monkeypatch.setattr(listing, "open_store", lambda url: store_of(system))
    (run,) = listing.describe_all("s3://bucket/run")
    for found, cut in zip(run["checkpoints"], ("checkpoint_0_1.h5", "checkpoint_0_2.h5"), strict=True):
        parts = sum(len(content) for name, content in job.files().items() if name.endswith(cut))
        assert found["bytes"] == parts + (job.path / found["file"]).stat().st_size
    lines = [line for line in listing.format_run(run).splitlines() if "cuts/" in line]
    assert len(lines) == 2
    assert lines[0].index("epoch") == lines[1].index("epoch")


def test_what_not_all_ranks_have_is_not_published(tmp_path: Path) -> None:
    job = Job(tmp_path / "a")
    job.save(0, 1)
    job.save(1, 1)
    snapshots = JobSnapshots(job.path, tmp_path / "staging")
    with pytest.raises(NotNow, match="no cut"):
        snapshots.take(is_going_on=True)
    job.cut(2)
    job.cut(3)
    job.directory.part(job.directory.manifests.read()[0], 1).unlink()
    taken = snapshots.take(is_going_on=True)
    assert list(taken.checkpoints) == ["cuts/checkpoint_0_2.h5.json"]
    needs = taken.checkpoints["cuts/checkpoint_0_2.h5.json"].needs
    assert needs == ("rank_0/checkpoint_0_2.h5", "rank_1/checkpoint_0_2.h5")
    job.save(0, 2).write_bytes(job.save(1, 4).read_bytes())  # of the same name, and another
    with pytest.raises(NotNow, match="no cut"):
        snapshots.take(is_going_on=True)


def test_a_cut_with_a_damaged_part_is_passed_over(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    system, job = two_cuts(tmp_path)
    (name,) = [name for name in system.objects if "rank_1/checkpoint_0_2" in name]
    system.objects[name] = b"other"
    there = fetched(system, tmp_path / "b")
    assert "rank_1/checkpoint_0_2.h5 could not be fetched" in capfd.readouterr().err
    newest_cut, before = there.manifests.read()
    assert not (there.rank(1).path / newest_cut.name).exists()
    assert there.part(before, 1).read_bytes() == job.directory.part(before, 1).read_bytes()


def test_the_end_of_a_job_is_published(tmp_path: Path) -> None:
    system, job = Faulty(), Job(tmp_path / "a")
    job.cut(1)
    (job.path / "finished").write_text("now\n")
    publication = Publication(job.path, store_of(system))
    publication.begin(is_fresh=False)
    publication.watch()
    manifest = manifests.read(store_of(system))
    assert manifest is not None
    assert manifest.is_finished
    assert published(fetched(system, tmp_path / "b").path).finished_at()
    state = publication.side.read_state()
    assert isinstance(state, State)
    assert list(state.published) == ["cuts/checkpoint_0_1.h5.json"]


def place(rank: int, **variables: str):
    given = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", **variables}
    return place_of(given)


def test_other_ranks_wait_for_rank_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = tmp_path / "train"
    waited = []

    def come(_: float) -> None:
        waited.append(1)
        if len(waited) == 3:
            together.note(job, place(0))

    monkeypatch.setattr("time.sleep", come)
    together.wait(job, place(1))
    assert len(waited) == 3
    together.wait(job, place(1))
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")  # another start
    monkeypatch.setattr(together, "_LONGEST_WAIT_S", 0.0)
    with pytest.raises(UsageError, match="rank 1: rank 0 has not begun"):
        together.wait(job, place(1))
    together.forget(job)
    together.forget(job)


def test_ranks_on_several_hosts_are_refused() -> None:
    together.check(place(0))
    with pytest.raises(UsageError, match="ranks on one host"):
        together.check(place(0, LOCAL_WORLD_SIZE="1"))


SCRIPT = """
import os, sys, time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
torch.set_num_threads(1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.Adam(model.parameters())
log = open(f"log_{rank}.txt", "w")
for epoch in range(3):
    for batch in range(20):
        x = torch.randn(4, 8)
        loss = (model(x) - x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(epoch, batch, loss.item(), file=log, flush=True)
        time.sleep(float(sys.argv[1]))
    if rank == 0:
        with open(f"epoch_{epoch}.txt", "w") as file:
            print(loss.item(), file=file)
dist.destroy_process_group()
"""


class Ranks(Machine):
    """A machine whose command starts two ranks."""

    def start(self, *options: str) -> subprocess.Popen[str]:
        return super().start("--ranks", "2", *options)


@pytest.mark.full
def test_a_machine_with_two_ranks_that_is_gone(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    (folder / "reference").mkdir(parents=True)
    (folder / "train.py").write_text(SCRIPT)
    machine = Ranks(folder, f"file://{tmp_path}/store/{{name}}", {"OMP_NUM_THREADS": "1"})
    written = loses_nothing(machine)
    assert sorted(written) == ["epoch_0.txt", "epoch_1.txt", "epoch_2.txt", "log_0.txt", "log_1.txt"]
