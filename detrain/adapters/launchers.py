"""Programs that start several ranks, and how each tells a process which one it is."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from detrain.errors import UsageError


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


def is_restarted(environment: Mapping[str, str]) -> bool:
    """True if torchrun has started this rank again: what is asked of a job's start was asked of the first one."""
    return environment.get(RESTARTS, "0") not in ("", "0")


def launcher_in(script: str, module: str) -> str:
    """The name of the launcher that a script or a module is; "" if it is none."""
    return _MODULES.get(module, "") or _COMMANDS.get(os.path.basename(script), "")


def command(num_ranks: int) -> Sequence[str]:
    """Starts so many ranks on this host; what each runs follows: `-m MODULE ARGS`."""
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}"]


@dataclass(frozen=True)
class Spot:
    """Where one rank of a job runs. The defaults are those of the only rank of a host, where no other job is to be met at its port."""

    rank: int
    #: Number of ranks.
    size: int
    #: Its place among the ranks of its host, and how many these are.
    local_rank: int = 0
    local_size: int = 1
    #: Its host's place among the hosts, and how many these are.
    host: int = 0
    num_hosts: int = 1
    #: Where rank 0 is to be met.
    address: str = "127.0.0.1"
    port: int = 29500
    #: Tells one start of a job from the next.
    run_id: str = "none"

    def variables(self) -> dict[str, str]:
        """What torchrun tells a rank by its environment."""
        return {
            "RANK": str(self.rank), "LOCAL_RANK": str(self.local_rank), "ROLE_RANK": str(self.rank), "GROUP_RANK": str(self.host),
            "WORLD_SIZE": str(self.size), "LOCAL_WORLD_SIZE": str(self.local_size), "ROLE_WORLD_SIZE": str(self.size),
            "GROUP_WORLD_SIZE": str(self.num_hosts), "MASTER_ADDR": self.address, "MASTER_PORT": str(self.port),
            "TORCHELASTIC_RUN_ID": self.run_id, RESTARTS: "0", "TORCHELASTIC_MAX_RESTARTS": "0",
        }  # fmt: skip


def variables(rank: int, size: int) -> dict[str, str]:
    """What torchrun tells a rank of a job on one host, where no other job is to be met at its port."""
    return Spot(rank, size, local_rank=rank, local_size=size).variables()


#: Of torchrun's own agent: a rank that inherits it looks for a store that nobody else keeps.
NOT_INHERITED = ("TORCHELASTIC_USE_AGENT_STORE",)
_VISIBLE = "CUDA_VISIBLE_DEVICES"
#: What the ranks of other hosts get of this process's environment, if it is set: what decides on bits and on how ranks talk.
_PASSED_ON = re.compile(r"PYTHONPATH|PYTHONHASHSEED|(DETRAIN|NCCL|GLOO|OMP|MKL|CUBLAS|TORCH)_.*")
_NOT_PASSED_ON = ("DETRAIN_REQUEST",)


def passed_on(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that ranks on other hosts, or in containers, get as well."""
    return {
        name: value for name, value in environment.items() if _PASSED_ON.fullmatch(name) and name not in _NOT_PASSED_ON
    }


def visible_devices(devices: Sequence[int], hidden_by: str | None = None) -> dict[str, str]:
    """The variable by which LOCAL_RANK is the number of a rank's GPU: a host's `devices`, in the order of its ranks.

    `hidden_by`: the variable as this process has it, whose list the numbers count, as CUDA itself counts; None if it has none. Without
    a GPU the variable means nothing. Raises `UsageError` for a number behind the end of that list.
    """
    if hidden_by is None:
        return {_VISIBLE: ",".join(map(str, devices))}
    visible = [name.strip() for name in hidden_by.split(",") if name.strip()]
    if not visible or visible == ["-1"]:
        return {_VISIBLE: hidden_by}
    if max(devices) >= len(visible):
        raise UsageError(f"{_VISIBLE} is {hidden_by}, which has no device {max(devices)}; unset it, or change machines")
    return {_VISIBLE: ",".join(visible[device] for device in devices)}


def hidden_by(environment: Mapping[str, str]) -> str | None:
    """The variable that hides devices from this process; None if it is not set."""
    return environment.get(_VISIBLE)
