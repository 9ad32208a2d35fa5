"""What a long run or a large state must not make anybody hold in memory, or go through again and again."""

import tracemalloc
from pathlib import Path

import numpy as np

from detrain.proof.segments import segments_of
from detrain.proof.verify import Repeatable
from detrain.store import checkpoint, leaves, ledger
from detrain.store.checkpoint import Checkpoint
from detrain.store.commit import commit
from detrain.store.directory import RunDirectory
from detrain.store.ledger import Batch, Ledger
from detrain.store.record import RunRecord


def test_of_a_runs_checkpoints_no_tables_are_in_memory_and_what_they_need_is_known(tmp_path, tree, meta, monkeypatch):
    place, last = RunDirectory(tmp_path), None
    for number in range(3):
        arrays = {"data": np.zeros(10_000), "step": np.array(number)}
        last = commit(place.checkpoint_path(number, 0), tree(arrays), meta(number + 1, chain=[f"c{number}"]), last)
    good, _ = place.read_checkpoints()
    assert [found.stored for found in good] == [[], [], []]
    assert [found.needs for found in good] == [{"checkpoint_0_0.h5", "c2"}, {"checkpoint_0_0.h5", "c1"}, {"c0"}]
    assert good[0].needs == last.needs == last.without_table().needs
    read = []
    monkeypatch.setattr(checkpoint, "read_header", read.append)
    assert place.read_checkpoints() == (good, [])
    assert read == []
    for found in good:
        assert all(found.is_built_on(name) for name in found.needs)
        assert not found.is_built_on("another")


def test_where_large_leaves_differ_is_found_in_little_memory():
    one = np.zeros((3, 1 << 20), np.float32)
    other = one.copy()
    other[1, 17], other[2, 5], other[2, 6] = 1.0, 2.0, 3.0
    tracemalloc.start()
    found, none = leaves.first_difference(one, other), leaves.first_difference(one, one)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found == (3, [1, 17])
    assert none is None
    assert peak < one.nbytes / 2


def test_elements_that_are_larger_than_what_is_compared_at_a_time_differ_once():
    one = np.zeros(3, f"V{3 << 20}")
    other = one.copy()
    other.view(np.uint8)[[4 << 20, 5 << 20, 7 << 20]] = 1
    assert leaves.first_difference(one, other) == (2, [1])


class Counting(dict):
    """Says how often it was asked."""

    asked = 0

    def get(self, *args):
        self.asked += 1
        return super().get(*args)


def test_the_pieces_of_a_list_are_made_once_for_all_records_of_it():
    found = Ledger({}, Counting({1: [("a", 3 << 20), ("b", 8)], 2: [("c", 8)]}), [], [])
    batches = [Batch(n, 0, 1, n, list_number=1, first_piece=n % 3, pieces=(7, 7)) for n in range(50)]
    assert [found.window(batch) for batch in batches[:2]] == [
        [("a", 0), ("a", 1 << 20)],
        [("a", 1 << 20), ("a", 2 << 20)],
    ]
    assert [found.window(batch)[0] for batch in batches[2:3]] == [("a", 2 << 20)]
    assert found.lists.asked == 1
    assert found.window(Batch(9, 0, 1, 9, list_number=2, pieces=(7,))) == [("c", 0)]
    assert found.lists.asked == 2


def test_records_are_counted_between_checkpoints(meta):
    keys = [(n, position) for n in (1, 2, 2, 5, 7, 7, 9, 12) for position in (n, n + 1)]
    done = Ledger({key: Batch(*key, 1, key[0]) for key in keys}, {}, [], [])
    checkpoints = [Checkpoint(Path(f"{n}.h5"), meta(n, batches=batches)) for n, batches in ((1, 2), (2, 2), (3, 7))]
    found = segments_of(checkpoints, done, is_finished=False)
    ends = [(-1, 2), (2, 2), (2, 7), (7, float("inf"))]
    assert [part.num_records for part in found] == [sum(a < key[0] < b for key in done.batches) for a, b in ends]


def test_a_verification_reads_the_ledger_once_for_all_parts(tmp_path, meta, monkeypatch):
    asked = []
    monkeypatch.setattr(ledger, "read", lambda path, **_: asked.append(path) or Ledger({}, {}, [], []))
    checkpoints = [Checkpoint(tmp_path / f"{n}.h5", meta(n, batches=n)) for n in range(1, 6)]
    names = frozenset(one.name for one in checkpoints)
    run = Repeatable(RunDirectory(tmp_path), RunRecord(), checkpoints, [], names)
    parts = run.segments()
    assert [run.order(part).until for part in parts] == [one.name for one in checkpoints]
    assert asked == [tmp_path / "ledger"]
