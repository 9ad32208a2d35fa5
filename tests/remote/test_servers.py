"""Real servers that fail: what was published is there afterwards, and what is fetched is a whole state."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fsspec", reason="runs in remote storage need fsspec")

from detrain.errors import CheckpointError
from detrain.remote import manifest as manifests
from detrain.remote import upload
from detrain.remote.objects import ExistsError, Store, StoreError, open_store
from detrain.remote.snapshot import Snapshot
from tests.remote import servers
from tests.remote.proxy import FAULTS, KILLS, Plan
from tests.remote.servers import Server
from tests.remote.states import fetched, publish_all, snapshot_of, state_of

#: Faults come at one request of so many.
_STRIDE = 3


@pytest.fixture(scope="module", params=servers.KINDS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    import fsspec

    with (
        servers.running(request.param, tmp_path_factory.mktemp(request.param)) as server,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in server.variables.items():
            patch.setenv(name, value)
        patch.setenv("AWS_MAX_ATTEMPTS", "1")  # faults are to come through the libraries, which try again themselves
        if request.param == "s3":
            patch.setattr("s3fs.S3FileSystem.retries", 1)
        else:
            patch.setattr("azure.storage.blob.aio.ExponentialRetry.increment", lambda *_, **__: False)
        fsspec.get_filesystem_class(server.url.split(":")[0]).clear_instance_cache()
        yield server


@pytest.fixture(scope="module")
def snapshots(tmp_path_factory: pytest.TempPathFactory) -> list[Snapshot]:
    folder = tmp_path_factory.mktemp("states")
    return [snapshot_of(folder, number) for number in (1, 2, 3)]


def published(server: Server, name: str, snapshots: list[Snapshot], plan: Plan) -> tuple[Store, list[int]]:
    """A store with the first state, to which the others are published while requests fail; and which have been, as the publisher knows."""
    store = open_store(f"{server.url}/{name}")
    done: list[int] = []
    server.proxy.plan = Plan()
    publish_all(store, snapshots[:1], done=done)
    before = manifests.read(store)
    server.proxy.plan = plan
    publish_all(store, snapshots[1:], before, done)
    server.proxy.plan = Plan()
    return store, done


def goes_on(store: Store, snapshots: list[Snapshot], folder: Path) -> None:
    """Another publisher publishes the third state, and cleans up."""
    assert publish_all(store, snapshots[2:], manifests.read(store)) == 3
    current = manifests.read(store)
    assert current is not None
    upload.sweep(store, current, set())
    assert fetched(store, folder) == state_of(3)
    assert set(store.names("data")) == current.objects


@pytest.mark.full
def test_of_two_that_make_the_same_object_one_is_told(server: Server) -> None:
    store = open_store(f"{server.url}/two")
    store.create("leases/1.json", b"first")
    with pytest.raises(ExistsError):
        store.create("leases/1.json", b"second")
    assert store.read("leases/1.json") == b"first"


@pytest.mark.full
@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_at_any_request_loses_nothing(
    kind: str, server: Server, snapshots: list[Snapshot], tmp_path: Path
) -> None:
    for position in range(0, 1000, _STRIDE):
        plan = Plan(kind, position)
        store, done = published(server, f"{kind}-{position}", snapshots, plan)
        if not plan.num_faults:
            break
        assert done[-1] == 3
        assert fetched(store, tmp_path / str(position)) == state_of(3)
        goes_on(store, snapshots, tmp_path / str(position))
    assert position >= 8 * _STRIDE


@pytest.mark.full
@pytest.mark.parametrize("kind", FAULTS)
def test_a_server_that_is_away_for_longer_loses_nothing(
    kind: str, server: Server, snapshots: list[Snapshot], tmp_path: Path
) -> None:
    for position in range(0, 1000, 4 * _STRIDE):
        plan = Plan(kind, position, span=1000)
        store, done = published(server, f"{kind}-{position}-on", snapshots, plan)
        if not plan.num_faults:
            break
        assert fetched(store, tmp_path / str(position)) in [state_of(number) for number in range(done[-1], 4)]
        goes_on(store, snapshots, tmp_path / str(position))
    assert position >= 2 * 4 * _STRIDE


@pytest.mark.full
@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_while_fetching_is_repaired_or_said(
    kind: str, server: Server, snapshots: list[Snapshot], tmp_path: Path
) -> None:
    store = open_store(f"{server.url}/{kind}-fetched")
    server.proxy.plan = Plan()
    publish_all(store, snapshots)
    for position in range(1000):
        server.proxy.plan = plan = Plan(kind, position)
        with contextlib.suppress(StoreError, CheckpointError):  # the folder is not the run's yet
            assert fetched(store, tmp_path / "run") == state_of(3)
        server.proxy.plan = Plan()
        if not plan.num_faults:
            break
        assert fetched(store, tmp_path / "run") == state_of(3)
    assert position >= len(state_of(3))


@pytest.mark.full
@pytest.mark.parametrize("kind", KILLS)
def test_a_publisher_that_is_killed_at_any_request_loses_nothing(
    kind: str, server: Server, snapshots: list[Snapshot], tmp_path: Path
) -> None:
    for position in range(0, 1000, 2 * _STRIDE):
        url = f"{server.url}/{kind}-{position}"
        store = open_store(url)
        server.proxy.plan = Plan()
        publish_all(store, snapshots[:1])
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.remote.states", url, str(tmp_path / f"states-{position}")],
            cwd=Path(__file__).parents[2], env={**os.environ, **server.variables}, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        server.proxy.plan = plan = Plan(kind, position, process=process.pid)
        done = [1, *map(json.loads, process.communicate(timeout=60)[0].split())]
        server.proxy.plan = Plan()
        if not plan.num_faults:
            assert process.returncode == 0
            break
        assert process.returncode == -9
        assert fetched(store, tmp_path / str(position)) in [state_of(number) for number in range(done[-1], 4)]
        goes_on(store, snapshots, tmp_path / str(position))
    assert position >= 3 * 2 * _STRIDE
