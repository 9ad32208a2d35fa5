"""Where the published profiles are: in `shared/data/profiles` beside the checkout, or where `DETRAIN_PROFILES` says."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from detrain.pipeline import graphtext
from detrain.pipeline.layers import Profile
from detrain.pipeline.plan import Workload
from detrain.pipeline.topology import Topology
from detrain.pipeline.topologyfile import of_machines, preset

#: Folder and name to the profile's batch, the batch of a step and the micro-batch, in samples. Of PipeDream's profiles only
#: those of vgg16 and resnet50 are known to be of 128; the others are taken to be so too.
WORKLOADS = {
    "dapple/amoeba-18-pbs-8": (8, 128, 8),
    "dapple/amoeba-6-pbs-8-complicated": (8, 128, 8),
    "dapple/amoeba-6-pbs-8-simplified": (8, 128, 8),
    "dapple/bert-24-pbs-6": (6, 128, 6),
    "dapple/bert-48-pbs-2": (2, 64, 2),
    "dapple/gnmt-16-pbs-64": (64, 1024, 64),
    "dapple/vgg-19-pbs-32": (32, 2048, 32),
    "dapple/vgg16": (64, 2048, 32),
    "dapple/xlnet-24-pbs-1": (1, 128, 1),
    "pipedream/alexnet": (128, 2048, 128),
    "pipedream/densenet121": (128, 2048, 128),
    "pipedream/gnmt": (128, 2048, 128),
    "pipedream/inception_v3": (128, 2048, 128),
    "pipedream/resnet18": (128, 2048, 128),
    "pipedream/resnet50": (128, 2048, 128),
    "pipedream/squeezenet1_0": (128, 2048, 128),
    "pipedream/vgg16": (128, 2048, 128),
}


def profile(name: str) -> Profile:
    """One of them. Exits where the folder is not there."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data" / "profiles"
    folder = Path(os.environ.get("DETRAIN_PROFILES", beside))
    if not folder.is_dir():
        sys.exit(f"{folder} is not there: DETRAIN_PROFILES has to name the folder of the published profiles")
    return graphtext.read(folder / f"{name}.txt")


def workload(name: str) -> Workload:
    """What a step of it is."""
    return Workload(*WORKLOADS[name])


def topologies() -> dict[str, Topology]:
    """Two machines of eight devices, and sixteen of one, with DAPPLE's links."""
    links = preset("dapple")
    return {"2x8": of_machines("8,16", links), "16x1": of_machines(",".join(map(str, range(1, 17))), links)}
