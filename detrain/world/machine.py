"""The machine that a run began on, and how a later attempt on another one is held to it.

Sums are split among threads, and kernels are chosen by the processor's instruction sets: both decide bits. What the libraries chose by
themselves is not changed; it is noted with the run, and an attempt that would choose otherwise is told by their own variables to choose
the same. Where that cannot be done the attempt is refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from detrain.errors import InexactResume
from detrain.messages import say

#: Instruction sets for which ATen, oneDNN, MKL, OpenBLAS, numpy or XLA have kernels of their own, by the kernel's names for them.
FEATURES = (
    "sse4_1", "avx", "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl",
    "avx512_vnni", "avx512_bf16", "avx512_fp16", "avx512ifma", "avx512vbmi", "avx512_vbmi2", "avx512_bitalg",
    "avx512_vpopcntdq", "amx_tile", "amx_bf16", "amx_int8", "amx_fp16",
    "asimd", "asimdhp", "asimdfhm", "sve", "sve2", "bf16", "i8mm",
)  # fmt: skip

#: Variables by which a user chooses threads, instruction sets or orders; a run keeps the values that it began with.
VARIABLES = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_DYNAMIC", "OMP_DYNAMIC", "MKL_CBWR",
    "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "OPENBLAS_CORETYPE",
    "NPY_DISABLE_CPU_FEATURES", "PYTHONHASHSEED",
)  # fmt: skip

_AVX512 = {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
#: The highest level first: what oneDNN's ONEDNN_MAX_CPU_ISA calls it, and what it needs. (oneDNN's documentation, "CPU dispatcher
#: control".)
_ONEDNN = (
    ("AVX512_CORE_AMX_FP16", {*_AVX512, "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_fp16"}),
    ("AVX512_CORE_AMX", {*_AVX512, "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "amx_int8"}),
    ("AVX512_CORE_FP16", {*_AVX512, "avx512_vnni", "avx512_bf16", "avx512_fp16"}),
    ("AVX512_CORE_BF16", {*_AVX512, "avx512_vnni", "avx512_bf16"}),
    ("AVX512_CORE_VNNI", {*_AVX512, "avx512_vnni"}),
    ("AVX512_CORE", _AVX512),
    ("AVX2_VNNI", {"avx2", "avx_vnni"}),
    ("AVX2", {"avx2"}),
    ("AVX", {"avx"}),
    ("SSE41", {"sse4_1"}),
)


@dataclass(frozen=True)
class Machine:
    """What of a machine and an environment decides bits."""

    #: Of the processor, as /proc/cpuinfo has it; `features` are those of `FEATURES` that it has.
    vendor: str = "unknown"
    features: list[str] = field(default_factory=list)
    #: Logical processors that the process may use, and physical cores among them.
    processors: int = 1
    cores: int = 1
    #: Those of `VARIABLES` and of the frameworks' that the user has set.
    variables: dict[str, str] = field(default_factory=dict)


def describe(more_variables: Iterable[str] = ()) -> Machine:
    """The machine that this process runs on, and its environment.

    `more_variables`: names of further environment variables that decide bits.
    """
    usable = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    vendor, features = _processor()
    variables = {name: os.environ[name] for name in (*VARIABLES, *more_variables) if name in os.environ}
    return Machine(vendor, features, len(usable), _num_cores(usable), variables)


def restrict_to_recorded(then: Machine, now: Machine) -> dict[str, str | None]:
    """The variables that make this machine compute as `then` did, None for one to be taken away; says what it holds.

    Raises `InexactResume` if this one lacks an instruction set, or is of another maker, for which libraries have other kernels.
    """
    missing = [name for name in then.features if name not in now.features]
    if missing or then.vendor != now.vendor:
        what = f"lacks {', '.join(missing)}" if missing else f"is {now.vendor}, not {then.vendor}"
        raise InexactResume(
            f"the run began on another processor; this one {what}, and libraries compute other bits on it",
            "Go back to such a machine, start over with --fresh, or resume with --trust-changes",
        )
    held: dict[str, str | None] = {
        name: then.variables.get(name) for name in dict.fromkeys((*VARIABLES, *then.variables, *now.variables))
    }
    if then.processors != now.processors or then.cores != now.cores:
        _hold_threads(held, then, now)
    if then.features != now.features:
        _hold_features(held, set(then.features), set(now.features))
    changes = {name: value for name, value in held.items() if value != now.variables.get(name)}
    if changes:
        told = ", ".join(name if value is None else f"{name}={value}" for name, value in changes.items())
        say(f"restricted to what the run began with: {told}")
    return changes


def _hold_threads(held: dict[str, str | None], then: Machine, now: Machine) -> None:
    held["OMP_NUM_THREADS"] = held["OMP_NUM_THREADS"] or str(then.processors)
    held["OPENBLAS_NUM_THREADS"] = held["OPENBLAS_NUM_THREADS"] or held["OMP_NUM_THREADS"]
    # MKL takes a thread for each core, and fewer than it is told if there are not so many cores.
    held["MKL_NUM_THREADS"] = held["MKL_NUM_THREADS"] or then.variables.get("OMP_NUM_THREADS") or str(then.cores)
    if now.cores < then.cores:
        held["MKL_DYNAMIC"] = held["MKL_DYNAMIC"] or "FALSE"


def _hold_features(held: dict[str, str | None], then: set[str], now: set[str]) -> None:
    """Keep libraries from the instruction sets that only this machine has."""
    if "avx2" in then or "avx512f" in now:  # x86; on others no library offers a choice by name
        aten = "avx512" if _AVX512 | {"fma"} <= then else "avx2" if {"avx2", "fma"} <= then else "default"
        held["ATEN_CPU_CAPABILITY"] = held["ATEN_CPU_CAPABILITY"] or aten
        level = next((name for name, needed in _ONEDNN if needed <= then), "SSE41")
        held["ONEDNN_MAX_CPU_ISA"] = held["ONEDNN_MAX_CPU_ISA"] or held["DNNL_MAX_CPU_ISA"] or level
        mkl = "AVX512" if then >= _AVX512 else "AVX2" if "avx2" in then else "SSE4_2"
        held["MKL_ENABLE_INSTRUCTIONS"] = held["MKL_ENABLE_INSTRUCTIONS"] or mkl
        if "avx512f" in now - then:
            held["OPENBLAS_CORETYPE"] = held["OPENBLAS_CORETYPE"] or "Haswell"
            held["NPY_DISABLE_CPU_FEATURES"] = held["NPY_DISABLE_CPU_FEATURES"] or "AVX512F AVX512CD AVX512_SKX"


def _processor() -> tuple[str, list[str]]:
    """The maker and the instruction sets, from the first processor's block in /proc/cpuinfo."""
    facts: dict[str, str] = {}
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                name, colon, value = line.partition(":")
                if not colon:
                    break
                facts[name.strip()] = value.strip()
    except OSError:
        return "unknown", []
    flags = set((facts.get("flags") or facts.get("Features") or "").split())
    return facts.get("vendor_id") or facts.get("CPU implementer") or "unknown", [n for n in FEATURES if n in flags]


def _num_cores(processors: Iterable[int]) -> int:
    """Physical cores among these processors."""
    cores = set()
    for number in processors:
        try:
            siblings = Path(f"/sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list")
            cores.add(siblings.read_text(encoding="ascii").strip())
        except OSError:
            cores.add(str(number))
    return len(cores)
