"""Which ranks have the same shard of a distributed tensor: one process, in the place of rank 2 of 4."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

import detrain.adapters.torch  # noqa: E402, F401 - registers its handlers
from detrain.session.replicas import replicas_of  # noqa: E402
from detrain.state.walk import Walk  # noqa: E402


@pytest.fixture
def mesh():
    """Ranks 0, 1 and ranks 2, 3."""
    from torch.distributed.device_mesh import init_device_mesh

    torch.distributed.init_process_group("fake", rank=2, world_size=4, store=FakeStore())
    yield init_device_mesh("cpu", (2, 2))
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def test_replicas_are_known_behind_the_end_of_the_process_group(mesh):
    from torch.distributed.tensor import DTensor, Replicate, Shard

    places = {
        "all": (Replicate(), Replicate()),
        "rows": (Shard(0), Replicate()),
        "columns": (Replicate(), Shard(0)),
        "each": (Shard(0), Shard(1)),
    }
    walk = Walk()
    for name, placements in places.items():
        walk.root(name, DTensor.from_local(torch.ones(2, 2), mesh, placements, run_check=False))
    tree = walk.run().tree
    for array in tree.arrays:
        array.compute_digest()
    # A checkpoint that the script's last batch began is still being written when the script is through.
    torch.distributed.destroy_process_group()
    assert {one.path.split(".")[0]: one.group for one in replicas_of(tree)} == {
        "all": "[0, 1, 2, 3]",
        "rows": "[2, 3]",
        "columns": "[0, 2]",
    }
