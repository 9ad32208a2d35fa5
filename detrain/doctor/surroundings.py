"""The machine, the environment, and what the last run has left on record."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from detrain.adapters import environment as frameworks
from detrain.doctor.finding import Finding
from detrain.errors import CheckpointError
from detrain.launch import environment
from detrain.store import listing
from detrain.store.directory import RunDirectory
from detrain.store.job import JobDirectory
from detrain.store.record import RunRecord
from detrain.world import machine, preload

_MACHINE = "machine"


def of_machine() -> list[Finding]:
    """What is missing here."""
    found = []
    if preload.library() is None:
        what = "the preload library is not built, so entropy, the order of folders and the clock are the machine's own"
        advice = "build it: `python setup.py build_syscalls` needs Linux and a C compiler"
        found.append(Finding("breaks", _MACHINE, what, advice))
    if not environment.can_fix_address_space():
        what = "address-space randomisation cannot be switched off, so id() and the order of sets of objects differ"
        advice = (
            "allow the system call personality() (in a container: by its seccomp profile), or keep sets of objects out"
        )
        found.append(Finding("risk", _MACHINE, what, advice))
    here = machine.describe(frameworks.VARIABLES)
    if here.vendor == "unknown":
        what = "the processor is not described in /proc/cpuinfo, so a move to another is not noticed"
        found.append(Finding("risk", _MACHINE, what, "run on Linux"))
    for name, value in here.variables.items():
        if name not in ("PYTHONHASHSEED", "CUBLAS_WORKSPACE_CONFIG"):
            found.append(
                Finding("note", _MACHINE, f"{name}={value} is set; a run that begins with it keeps it", "nothing, if it is meant")
            )  # fmt: skip
    if os.environ.get("CUBLAS_WORKSPACE_CONFIG", ":4096:8") not in (":4096:8", ":16:8"):
        found.append(
            Finding("breaks", _MACHINE, "CUBLAS_WORKSPACE_CONFIG has a value with which cuBLAS is not deterministic", "unset it")
        )  # fmt: skip
    if sys.flags.hash_randomization and os.environ.get("PYTHONHASHSEED") == "random":
        found.append(Finding("breaks", _MACHINE, "PYTHONHASHSEED=random orders sets anew in each run", "unset it"))
    return found


def of_run(path: Path) -> list[Finding]:
    """What the record and the newest checkpoint of a run say; of a job, those of every rank on this host."""
    job = JobDirectory(path)
    ranks = job.ranks_here()
    if ranks:
        return [finding for number in ranks for finding in of_run(job.rank(number).path)]
    directory = RunDirectory(path)
    record = directory.read_record() or RunRecord()
    found = []
    if record.is_preloaded is False:
        found.append(
            Finding(
                "breaks",
                str(path),
                "this run began without the preload library",
                "start over with --fresh once it is built",
            )
        )
    if record.is_address_space_fixed is False:
        found.append(
            Finding("risk", str(path), "this run began with randomised addresses", "see the machine's finding")
        )
    good, bad = directory.read_checkpoints()
    found += [
        Finding("risk", str(path), str(error), "an earlier checkpoint is used; find out what damages files there")
        for error in bad
    ]
    if good:
        found += _kept(good[0].path)
    return found


def _kept(path: Path) -> list[Finding]:
    try:
        kept = listing.describe_checkpoint(path)["kept"]
    except CheckpointError as error:
        return [Finding("breaks", str(path), str(error), "resume from an earlier one with --from")]
    return [
        Finding(
            "breaks", str(path), f"{one['path']} ({one['type']}) is not in the checkpoint: {one['why']}",
            "keep it out of the loop's reach; or pass --trust-changes on the resume if the loop does not change it",
        )
        for one in kept if one["is_loud"]
    ]  # fmt: skip
