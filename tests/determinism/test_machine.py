"""A run is held to the machine that it began on."""

from __future__ import annotations

import os

import pytest

from detrain.errors import ResumeRefused
from detrain.world import machine

ZEN5 = ["sse4_1", "avx", "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"]
ZEN5 += ["avx512_vnni", "avx512_bf16"]
ZEN3 = ["sse4_1", "avx", "avx2", "fma", "f16c"]


def a_machine(
    features: list[str] = ZEN5, processors: int = 16, vendor: str = "AuthenticAMD", **variables: str
) -> machine.Machine:
    return machine.Machine(vendor, features, processors, max(processors // 2, 1), variables)


def test_this_machine_is_described() -> None:
    here = machine.describe()
    assert here.vendor != "unknown"
    assert here.features
    assert here.processors == len(os.sched_getaffinity(0))
    assert 1 <= here.cores <= here.processors


def test_nothing_is_held_on_the_same_machine(capfd) -> None:
    assert machine.restrict_to_recorded(a_machine(OMP_NUM_THREADS="4"), a_machine(OMP_NUM_THREADS="4")) == {}
    assert capfd.readouterr().err == ""


def test_the_threads_of_a_machine_with_more_processors_are_the_old_number() -> None:
    held = machine.restrict_to_recorded(a_machine(processors=16), a_machine(processors=64))
    assert held == {"OMP_NUM_THREADS": "16", "OPENBLAS_NUM_THREADS": "16", "MKL_NUM_THREADS": "8"}


def test_fewer_processors_carry_as_many_threads(capfd) -> None:
    held = machine.restrict_to_recorded(a_machine(processors=16), a_machine(processors=2))
    assert held == {
        "OMP_NUM_THREADS": "16", "OPENBLAS_NUM_THREADS": "16", "MKL_NUM_THREADS": "8", "MKL_DYNAMIC": "FALSE",
    }  # fmt: skip
    said = capfd.readouterr().err
    assert said.startswith("detrain: restricted to what the run began with: OMP_NUM_THREADS=16, ")


def test_what_the_user_chose_when_the_run_began_stays() -> None:
    held = machine.restrict_to_recorded(
        a_machine(OMP_NUM_THREADS="4"), a_machine(processors=8, OMP_NUM_THREADS="8", MKL_CBWR="AVX2")
    )
    assert held == {
        "OMP_NUM_THREADS": "4", "OPENBLAS_NUM_THREADS": "4", "MKL_NUM_THREADS": "4", "MKL_CBWR": None,
        "MKL_DYNAMIC": "FALSE",
    }  # fmt: skip


def test_newer_instruction_sets_are_not_used() -> None:
    held = machine.restrict_to_recorded(a_machine(ZEN3), a_machine(ZEN5))
    assert held == {
        "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "OPENBLAS_CORETYPE": "Haswell", "NPY_DISABLE_CPU_FEATURES": "AVX512F AVX512CD AVX512_SKX",
    }  # fmt: skip


def test_missing_instruction_sets_are_refused_by_name() -> None:
    with pytest.raises(
        ResumeRefused, match=r"lacks avx_vnni, avx512f, .*avx512_bf16, and libraries .* --trust-changes"
    ):
        machine.restrict_to_recorded(a_machine(ZEN5), a_machine(ZEN3))


def test_another_maker_is_refused() -> None:
    with pytest.raises(ResumeRefused, match="is GenuineIntel, not AuthenticAMD"):
        machine.restrict_to_recorded(a_machine(), a_machine(vendor="GenuineIntel"))
