"""Programs that start several ranks, and how each tells a process which one it is."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Launcher:
    """Names of the environment variables by which a launcher tells a process its place."""

    name: str
    rank: str
    size: str
    local_size: str
    #: Variables that tell one start of a job from the next.
    start: tuple[str, ...] = ()


#: What `accelerate launch`, `deepspeed` and Lightning set for their processes as well.
ELASTIC = Launcher("torchrun", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", ("TORCHELASTIC_RUN_ID",))
#: How often torchrun has started these ranks again; on several hosts not the same number, so it does not tell starts apart.
RESTARTS = "TORCHELASTIC_RESTART_COUNT"
#: Its tasks may have nothing to do with each other.
SLURM = Launcher(
    "srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE", ("SLURM_JOB_ID", "SLURM_STEP_ID")
)
#: In the order in which they are asked.
LAUNCHERS = (
    ELASTIC,
    Launcher("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", ("PMIX_NAMESPACE",)),
    Launcher("mpirun", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE"),
    SLURM,
)  # fmt: skip
#: How several ranks are started under detrain.
HOW = "torchrun --nproc-per-node=N -m detrain run SCRIPT"
#: Modules that launchers are run by, and what each is called.
_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate launch",
    "accelerate.commands.accelerate_cli": "accelerate launch",
    "deepspeed.launcher.runner": "deepspeed",
}
#: And the commands.
_COMMANDS = {"torchrun": "torchrun", "accelerate": "accelerate launch", "deepspeed": "deepspeed"}


def launcher_in(script: str, module: str) -> str:
    """The name of the launcher that a script or a module is; "" if it is none."""
    return _MODULES.get(module, "") or _COMMANDS.get(os.path.basename(script), "")


def command(num_ranks: int) -> Sequence[str]:
    """Starts so many ranks on this host; what each runs follows: `-m MODULE ARGS`."""
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}"]


def variables(rank: int, size: int) -> dict[str, str]:
    """What torchrun tells a rank of a job on one host, where no other job is to be met at its port."""
    return {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "ROLE_RANK": str(rank), "GROUP_RANK": "0", "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size), "ROLE_WORLD_SIZE": str(size), "GROUP_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "0",
    }  # fmt: skip
