"""Publishing and fetching, whatever the store does: what is fetched is a whole state, and none that was published before is lost."""

import contextlib
from pathlib import Path

import pytest

pytest.importorskip("fsspec", reason="runs in remote storage need fsspec")

from detrain.errors import CheckpointError
from detrain.remote import manifest as manifests
from detrain.remote import upload
from detrain.remote.fetch import fetch
from detrain.remote.objects import StoreError
from detrain.remote.snapshot import Snapshot
from tests.remote.faulty import ERRORS, KILLS, READ_ERRORS, Faulty, Killed, Plan, store_of
from tests.remote.states import WHO, fetched, publish_all, snapshot_of, state_of


def num_operations(snapshots: list[Snapshot]) -> int:
    system = Faulty()
    publish_all(store_of(system), snapshots)
    return system.plan.count


@pytest.fixture(autouse=True)
def without_syncing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda _: None)  # most of the time, and nothing that these tests see


@pytest.fixture(scope="module")
def snapshots(tmp_path_factory: pytest.TempPathFactory) -> list[Snapshot]:
    folder = tmp_path_factory.mktemp("states")
    return [snapshot_of(folder, number) for number in (1, 2, 3)]


def test_what_was_published_is_fetched(snapshots: list[Snapshot], tmp_path: Path) -> None:
    system = Faulty()
    assert publish_all(store_of(system), snapshots) == 3
    assert fetched(store_of(system), tmp_path / "run") == state_of(3)


def test_nothing_is_left_of_what_no_manifest_names(snapshots: list[Snapshot]) -> None:
    system = Faulty()
    publish_all(store_of(system), snapshots)
    assert len([name for name in system.objects if "/data/" in name]) == len(state_of(3))
    assert len([name for name in system.objects if "/manifests/" in name]) == 1


def test_publishing_the_same_again_sends_nothing(snapshots: list[Snapshot]) -> None:
    system = Faulty()
    before = upload.publish(store_of(system), snapshots[0], None, WHO)
    count = system.plan.count
    assert upload.publish(store_of(system), snapshots[0], before, WHO) is before
    assert system.plan.count == count


@pytest.mark.parametrize("kind", [*ERRORS, *KILLS, "stale"])
def test_a_fault_in_any_operation_loses_nothing(kind: str, snapshots: list[Snapshot], tmp_path: Path) -> None:
    num_faults = 0
    for position in range(num_operations(snapshots)):
        system = Faulty()
        store = store_of(system)
        done: list[int] = []
        publish_all(store, snapshots[:1], done=done)
        before = manifests.read(store)
        system.plan = Plan({position: kind})
        is_killed = False
        try:
            publish_all(store, snapshots[1:], before, done)
        except Killed:
            is_killed = True
        if system.plan.count <= position:
            break
        num_faults += 1
        system.plan = Plan()
        target = tmp_path / f"{position}"
        now = fetched(store, target)
        assert now in [state_of(number) for number in range(done[-1], 4)], (position, kind)
        if not is_killed:
            assert now == state_of(3)
        # Another publisher goes on, and cleans up.
        assert publish_all(store, snapshots[2:], manifests.read(store)) == 3
        current = manifests.read(store)
        assert current is not None
        upload.sweep(store, current, set())
        assert fetched(store, target) == state_of(3)
        assert {name for name in system.objects if "/data/" in name} == {
            f"bucket/run/{name}" for name in current.objects
        }
    assert num_faults >= 20


@pytest.mark.parametrize("kind", [*READ_ERRORS, *ERRORS, *KILLS])
def test_a_fault_while_fetching_is_repaired_or_said(kind: str, snapshots: list[Snapshot], tmp_path: Path) -> None:
    for position in range(len(state_of(3)) + 3):
        system = Faulty()
        store = store_of(system)
        publish_all(store, snapshots)
        system.plan = Plan({position: kind})
        with contextlib.suppress(StoreError, Killed):  # the folder is not the run's yet
            assert fetched(store, tmp_path / "run") == state_of(3)
        system.plan = Plan()
        assert fetched(store, tmp_path / "run") == state_of(3)


def damaged(system: Faulty, word: str, content: bytes | None) -> None:
    (name,) = [one for one in system.objects if word in one]
    if content is None:
        del system.objects[name]
    else:
        system.objects[name] = content


@pytest.mark.parametrize("content", [None, b"", b"other"])
def test_a_damaged_checkpoint_is_passed_over(content: bytes | None, snapshots: list[Snapshot], tmp_path: Path) -> None:
    system = Faulty()
    publish_all(store_of(system), snapshots)
    damaged(system, "checkpoint_0_3", content)
    manifest = manifests.read(store_of(system))
    assert manifest is not None
    done = fetch(store_of(system), manifest, tmp_path / "run")
    assert list(done.missing) == ["checkpoint_0_3.h5"]
    assert sorted(path.name for path in (tmp_path / "run").glob("*.h5")) == ["checkpoint_0_2.h5"]


@pytest.mark.parametrize("word", ["checkpoint_0_2", "ledger", "run.json", "kept/"])
def test_a_run_without_what_it_needs_is_refused(word: str, snapshots: list[Snapshot], tmp_path: Path) -> None:
    system = Faulty()
    publish_all(store_of(system), snapshots)
    damaged(system, word, None)
    manifest = manifests.read(store_of(system))
    assert manifest is not None
    with pytest.raises(CheckpointError, match=word):
        fetch(store_of(system), manifest, tmp_path / "run")


def test_a_torn_manifest_leaves_its_double(snapshots: list[Snapshot], tmp_path: Path) -> None:
    system = Faulty()
    publish_all(store_of(system), snapshots)
    system.objects["bucket/run/MANIFEST.json"] = system.objects["bucket/run/MANIFEST.json"][:100]
    assert fetched(store_of(system), tmp_path / "run") == state_of(3)


def test_manifests_that_cannot_be_read_are_no_empty_store(snapshots: list[Snapshot]) -> None:
    system = Faulty()
    publish_all(store_of(system), snapshots)
    for name in list(system.objects):
        if "anifest" in name.lower():
            system.objects[name] = b"{"
    with pytest.raises(CheckpointError, match="no manifest"):
        manifests.read(store_of(system))


def test_a_manifest_cannot_name_a_file_elsewhere(snapshots: list[Snapshot], tmp_path: Path) -> None:
    manifest = upload.publish(store_of(Faulty()), snapshots[0], None, WHO)
    manifest.files["../outside"] = manifest.files["ledger"]
    with pytest.raises(CheckpointError, match="outside"):
        fetch(store_of(Faulty()), manifest, tmp_path / "run")


def test_of_two_that_publish_the_same_number_one_is_told(snapshots: list[Snapshot]) -> None:
    store = store_of(Faulty())
    before = upload.publish(store, snapshots[0], None, WHO)
    upload.publish(store, snapshots[1], before, WHO)
    with pytest.raises(upload.SomebodyElse):
        upload.publish(store, snapshots[2], before, upload.Publisher("you", "there"))


def test_what_fresh_has_kept_stays(snapshots: list[Snapshot], tmp_path: Path) -> None:
    store = store_of(Faulty())
    before = upload.publish(store, snapshots[0], None, WHO)
    manifests.keep(store, before)
    kept = manifests.read_kept(store)
    upload.publish(store, snapshots[2], before, WHO, protected=kept[0].objects)
    fetch(store, kept[0], tmp_path / "old")
    assert (tmp_path / "old/run.json").read_bytes() == state_of(1)["run.json"]
