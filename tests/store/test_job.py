"""A job's directory as `ls`, `inspect`, `diff` and `report` see it: made by hand, two ranks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from detrain.errors import CheckpointError, UsageError
from detrain.proof import diff
from detrain.report import history, ranks
from detrain.store import job, ledger, listing
from detrain.store.checkpoint import fingerprint
from detrain.store.commit import commit
from detrain.store.job import Held, JobDirectory, Manifest
from detrain.store.ledger import Batch, LedgerFile
from detrain.store.record import RunRecord

from .conftest import make_meta, make_tree


def make_job(path: Path, cuts: int = 2, size: int = 2) -> JobDirectory:
    """Each rank has a ledger and its part of each cut."""
    made = JobDirectory(path)
    made.begin(size)
    for rank in range(size):
        directory = made.rank(rank)
        directory.path.mkdir()
        directory.write_record(RunRecord(script="/nowhere/train.py", name="train", attempts=2, began="today"))
        file = LedgerFile(directory.path / "ledger")
        file.append_json(b"A", {"attempt": 1, "batches": 0, "at": 10.0})
        file.append_json(b"L", {"number": 1, "leaves": [["train.w", 8]], "seen_at": [1, 0]})
        for batches in range(1, 7):
            file.append(b"B", Batch(batches, 0, 1, batches, list_number=1, pieces=(100 * rank + batches,)).encode())
        file.append(b"V", ledger.encode_losses(12.0, [(1, 0, 0.5), (2, 0, 0.25 + rank)]))
        for number in range(1, cuts + 1):
            name = f"checkpoint_0_{number}.h5"
            commit(
                directory.path / name,
                make_tree({"train.w": np.arange(2.0) + rank + number}),
                make_meta(number, batches=number),
            )
            saved = {"name": name, "batches": number, "at": 20.0 + number + 0.3 * rank, "stall_s": 0.01 + rank}
            file.append_json(b"S", saved)
        file.close()
    for number in range(1, cuts + 1):
        write_manifest(made, number, size)
    return made


def write_manifest(made: JobDirectory, number: int, size: int = 2) -> None:
    """Of the cut of this number, as its parts are now."""
    name = f"checkpoint_0_{number}.h5"
    parts = tuple(
        Held(rank, f"host{rank}", f"/there/rank_{rank}", fingerprint(made.rank(rank).path / name))
        for rank in range(size)
    )
    made.manifests.write(Manifest(name, number, 0, number, number, (), parts))


@pytest.fixture
def made(tmp_path: Path) -> JobDirectory:
    """Two ranks, two cuts."""
    return make_job(tmp_path / "train")


def test_a_job_is_listed_by_its_cuts(made: JobDirectory) -> None:
    assert listing.find_runs(made.path.parent) == [made.path]
    found = listing.describe(made.path)
    assert (found["num_ranks"], found["attempts"], found["is_finished"]) == (2, 2, False)
    assert [cut["file"] for cut in found["checkpoints"]] == ["checkpoint_0_2.h5", "checkpoint_0_1.h5"]
    assert json.loads(json.dumps(found)) == found
    text = listing.format_run(found)
    assert "/nowhere/train.py\n  not finished; began today; attempts: 2; ranks: 2; cuts: 2\n" in text
    assert text.count("checkpoint_0_") == 2


def test_what_a_cut_lacks_is_named(made: JobDirectory) -> None:
    (made.rank(1).path / "checkpoint_0_2.h5").unlink()
    bad = made.rank(0).path / "checkpoint_0_1.h5"
    bad.write_bytes(bad.read_bytes()[:2000])
    latest, earlier = listing.describe(made.path)["checkpoints"]
    assert latest["damage"].startswith("rank 1: checkpoint_0_2.h5 is not in ")
    assert earlier["damage"].startswith("rank 0: ")
    shutil.rmtree(made.rank(1).path)  # it is on its own host
    found = listing.describe(made.path)
    assert found["checkpoints"][0]["damage"] == ""
    assert "on this host: ranks 0" in listing.format_run(found)
    text = listing.format_cut(found["checkpoints"][0])
    assert "rank 1 on host1: " in text
    assert "not on this host" in text


@pytest.mark.parametrize("text", ["", "[]", '{"format": 2}', '{"format": 1, "name": "x"}', "{"])
def test_a_manifest_that_is_none_is_refused(made: JobDirectory, text: str) -> None:
    path = made.manifests.path / "checkpoint_0_2.h5.json"
    path.write_text(text)
    with pytest.raises(CheckpointError, match="checkpoint_0_2"):
        job.read_manifest(path)
    assert "cannot be used" in listing.describe(made.path)["damage"]


def test_a_part_of_another_cut_is_named(made: JobDirectory) -> None:
    (latest,) = (one for one in made.manifests.read() if one.sequence == 2)
    path = made.rank(1).path / latest.name
    path.write_bytes((made.rank(1).path / "checkpoint_0_1.h5").read_bytes())
    with pytest.raises(CheckpointError, match="is not the file that was part of the cut"):
        made.part(latest, 1)
    assert "is not the file" in listing.describe(made.path)["checkpoints"][0]["damage"]
    with pytest.raises(CheckpointError, match="is not the file"):
        diff.compare(made.path, made.path)


def test_manifests_of_another_future_are_moved_aside(made: JobDirectory) -> None:
    made.manifests.set_aside(1)
    assert made.manifests.names() == ("checkpoint_0_1.h5",)
    assert (made.manifests.path / "aside" / "checkpoint_0_2.h5.json").exists()


def test_a_damaged_record_of_a_job_is_named(made: JobDirectory) -> None:
    (made.path / "job.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"job\.json is damaged"):
        made.size()
    assert "job.json is damaged" in listing.describe(made.path)["damage"]


# --- diff ------------------------------------------------------------------------------------------------------------


def test_equal_jobs_are_the_same(made: JobDirectory, tmp_path: Path) -> None:
    other = make_job(tmp_path / "other")
    found = diff.compare(made.path, other.path)
    assert found["same"]
    assert found["num_leaves"] == 8
    assert diff.format_result(found).startswith("same: 8 leaves. ")


def test_a_difference_names_its_rank(made: JobDirectory, tmp_path: Path) -> None:
    other = make_job(tmp_path / "other")
    tree = make_tree({"train.w": np.array([3.0, 5.0])})
    (other.rank(1).path / "checkpoint_0_2.h5").unlink()
    commit(other.rank(1).path / "checkpoint_0_2.h5", tree, make_meta(2, batches=2))
    write_manifest(other, 2)
    for rank, first in ((0, 5), (1, 4)):
        file = LedgerFile(other.rank(rank).path / "ledger")
        for batches in range(first, 7):
            file.append(b"B", Batch(batches, 0, 1, batches, list_number=1, pieces=(7,)).encode())
        file.close()
    found = diff.compare(made.path, other.path)
    assert (found["same"], found["num_differences"]) == (False, 1)
    assert [(one["rank"], one["path"]) for one in found["differences"]] == [(1, "train.w")]
    assert (found["parting"]["rank"], found["parting"]["batches"], found["parting"]["leaf"]) == (1, 4, "w")
    text = diff.format_result(found)
    assert "differ from batch 4 on (epoch 0, batch 4 of it), on rank 1: w differs first" in text
    assert "  rank 1: train.w: " in text


def test_jobs_that_cannot_be_compared_are_refused(made: JobDirectory, tmp_path: Path) -> None:
    three = make_job(tmp_path / "three", size=3)
    with pytest.raises(UsageError, match=r"is a job of 2 ranks, .* one of 3"):
        diff.compare(made.path, three.path)
    with pytest.raises(UsageError, match="rank_0 is not a job of several ranks"):
        diff.compare(made.path, three.rank(0).path)
    (three.rank(1).path / "checkpoint_0_2.h5").unlink()
    with pytest.raises(CheckpointError, match="rank 1's part of the cut, is not there"):
        diff.compare(three.path, three.path)
    with pytest.raises(CheckpointError, match="there is no cut"):
        diff.compare(made.path, make_job(tmp_path / "none", cuts=0).path)


# --- report ----------------------------------------------------------------------------------------------------------


def test_what_was_lost_is_read_back_and_a_torn_line_left_out(made: JobDirectory) -> None:
    path = made.rank(0).path
    assert job.read_lost(path) == []
    job.note_lost(path, 1, "rank 1 is gone")
    with (path / job.LOST).open("a") as file:
        file.write('{"at": 3')
    assert [(one["attempt"], one["why"]) for one in job.read_lost(path)] == [(1, "rank 1 is gone")]


def test_the_section_of_ranks(made: JobDirectory) -> None:
    job.note_lost(made.rank(0).path, 1, "rank 1 is gone")
    found = history.read(made.path)
    assert list(found.ranks) == [0, 1]
    assert [(one["rank"], one["why"]) for one in found.lost] == [(0, "rank 1 is gone")]
    text = "".join(ranks.section(found))
    assert "Cuts wait for rank 1: its part is on the disk 300 ms behind the first" in text
    assert "<td>10.0 ms</td>" in text
    assert "<td>1010.0 ms</td>" in text
    assert list(ranks.section(found.ranks[0])) == []


def test_a_rank_alone_is_a_run(made: JobDirectory) -> None:
    assert not listing.is_job(made.rank(0).path)
    assert listing.find_runs(made.rank(0).path) == [made.rank(0).path]
