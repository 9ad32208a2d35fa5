"""What `import detrain` offers."""

import json
import subprocess
import sys

import numpy as np
import pytest

import detrain
from detrain.errors import CheckpointError, UsageError
from detrain.state.tree import Array, Tree
from detrain.store.commit import commit
from detrain.store.ledger import LedgerFile, encode_losses
from detrain.store.meta import Meta
from detrain.store.record import RunRecord


def save(path, weight, epochs=1):
    nodes = [{"k": "buffer", "t": "builtins:bytearray", "p": None, "s": "train.weight", "array": 0}]
    tree = Tree(
        nodes, [Array("train.weight", weight)], {"train.weight": ["@", 0], "train.epoch": epochs, "train.name": "a"}
    )
    return commit(path, tree, Meta(epochs, epoch=epochs, batch=2, chain=[])).path


@pytest.fixture
def weight():
    return np.arange(6, dtype=np.float32).reshape(2, 3)


def test_a_checkpoint_is_a_mapping_of_its_leaves(tmp_path, weight):
    snapshot = detrain.load(save(tmp_path / "checkpoint_1_2.h5", weight))
    assert set(snapshot) == {"train.weight", "train.epoch", "train.name"}
    assert (len(snapshot), snapshot.epoch, snapshot.batch) == (3, 1, 2)
    assert np.array_equal(snapshot["train.weight"], weight)
    assert (snapshot["train.epoch"], snapshot["train.name"]) == (1, "a")
    assert (snapshot.dtype("train.weight"), snapshot.dtype("train.epoch")) == ("float32", "int")
    assert repr(snapshot) == "<Snapshot checkpoint_1_2.h5: epoch 1, batch 2, 3 leaves>"
    assert snapshot.missing == {}


def test_what_was_loaded_cannot_be_written_into(tmp_path, weight):
    snapshot = detrain.load(save(tmp_path / "checkpoint_1_2.h5", weight))
    with pytest.raises(ValueError, match="read-only"):
        snapshot["train.weight"][0, 0] = 1


def test_equal_digests_are_equal_bits(tmp_path, weight):
    one, same, other = (
        detrain.load(save(tmp_path / name, data))
        for name, data in (("a.h5", weight), ("b.h5", weight.copy()), ("c.h5", -weight))
    )
    assert one.digest("train.weight") == same.digest("train.weight") != other.digest("train.weight")


def test_of_a_run_the_latest_checkpoint_is_loaded(tmp_path, weight):
    save(tmp_path / "checkpoint_1_2.h5", weight)
    save(tmp_path / "checkpoint_2_2.h5", weight + 1, 2)
    assert detrain.load(tmp_path).epoch == 2


def test_a_folder_without_a_checkpoint_and_a_file_that_is_none_are_named(tmp_path):
    with pytest.raises(UsageError, match="there is no checkpoint in"):
        detrain.load(tmp_path)
    (tmp_path / "notes.txt").write_text("notes")
    with pytest.raises(CheckpointError, match=r"notes\.txt is not a checkpoint"):
        detrain.load(tmp_path / "notes.txt")


def test_checkpoints_are_compared_bit_for_bit(tmp_path, weight):
    one, same = save(tmp_path / "a.h5", weight), save(tmp_path / "b.h5", weight)
    alike = detrain.diff(one, same)
    assert (alike.same, alike.num_differences, alike.differences, alike.notes, alike.parting) == (True, 0, [], [], None)
    assert alike.num_leaves >= 3
    assert not detrain.diff(one, same)
    changed = weight.copy()
    changed[1, 2] = -0.0
    found = detrain.diff(one, save(tmp_path / "c.h5", changed))
    assert found
    assert [(entry.path, entry.what, entry.details["index"]) for entry in found.differences] == [
        ("train.weight", "elements", [1, 2])
    ]


def test_parts_of_a_run_are_told_as_they_are_proved(tmp_path, monkeypatch):
    row = {
        "number": 0, "start": "the beginning", "until": "the end", "result": "same", "num_compared": 4, "seconds": 1.5,
        "num_records": 4,
    }  # fmt: skip

    def verified(path, jobs, on_done):
        assert (path, jobs) == (tmp_path, 2)
        on_done(row)
        return {"same": True, "segments": [row], "damaged": []}

    monkeypatch.setattr("detrain.proof.verify.verify", verified)
    told = []
    proof = detrain.verify(tmp_path, 2, told.append)
    part = detrain.Segment("the beginning", "the end", "same", 4, 1.5, {"number": 0, "num_records": 4})
    assert (proof, told) == (detrain.Proof(True, [part], []), [part])


def test_importing_the_package_loads_nothing_else():
    code = (
        "import sys, detrain; assert 'load' in dir(detrain); print(*(m for m in ('numpy', 'h5py') if m in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "\n"


def test_what_is_not_offered_is_not_there():
    with pytest.raises(AttributeError, match="has no attribute 'train'"):
        _ = detrain.train


def test_the_losses_of_a_run_are_a_data_frame(tmp_path):
    pytest.importorskip("pandas", reason="detrain.history makes a data frame: pip install 'detrain-run[frame]'")
    (tmp_path / "run.json").write_text(json.dumps(RunRecord(script="train.py", name="train").encode()))
    file = LedgerFile(tmp_path / "ledger")
    for attempt, begin, end in ((1, 0, 6), (2, 4, 8)):  # the first was killed behind its checkpoint at batch 4
        file.append_json(b"A", {"attempt": attempt, "batches": begin, "at": 1000.0 * attempt})
        for batch in range(begin + 1, end + 1, 2):
            losses = [(batch, 0, attempt + batch / 100), (batch + 1, 0, attempt + (batch + 1) / 100)]
            file.append(b"V", encode_losses(1000.0 * attempt + batch, losses))
    frame = detrain.history(tmp_path)
    assert list(frame.columns) == ["batch", "which", "loss", "at", "attempt"]
    assert frame["batch"].tolist() == list(range(1, 9))
    assert frame["attempt"].tolist() == [1] * 4 + [2] * 4
    assert frame["loss"].tolist() == [1.01, 1.02, 1.03, 1.04, 2.05, 2.06, 2.07, 2.08]
    assert [one.timestamp() for one in frame["at"]] == [1001, 1001, 1003, 1003, 2005, 2005, 2007, 2007]


def test_a_folder_without_a_run_has_no_history(tmp_path):
    pytest.importorskip("pandas", reason="detrain.history makes a data frame: pip install 'detrain-run[frame]'")
    with pytest.raises(UsageError, match="is no run directory"):
        detrain.history(tmp_path)
