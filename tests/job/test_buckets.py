"""The buckets of `DistributedDataParallel` in a resume: with three ranks, the layout decides about the bits."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

RANKS = 3


def outcome(**options) -> list[bool]:
    """Whether the buckets were laid out anew; whether a resume has the bits of a run in one go without the cure, and with it."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    words = [sys.executable, str(Path(__file__).with_name("bucket_ranks.py"))]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [*words, str(rank), str(port), json.dumps(options)], env=environment, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for rank in range(RANKS)
    ]  # fmt: skip
    told = [one.communicate(timeout=100) for one in ranks]
    assert [one.returncode for one in ranks] == [0] * RANKS, told[0][1]
    found = [json.loads(out) for out, _ in told]
    return [all(one[which] for one in found) for which in range(3)]


@pytest.mark.full
def test_without_the_cure_a_resume_has_other_bits_and_with_it_the_same():
    assert outcome() == [True, False, True]


@pytest.mark.full
@pytest.mark.parametrize(
    "options",
    [
        {"static_graph": True},
        {"static_graph": True, "resumed_at": 1},
        {"gradient_as_bucket_view": True},
        {"bucket_cap_mb": 0.005},
        {"picture": True},
    ],
    ids=str,
)
def test_other_ways_to_wrap_a_model(options):
    assert outcome(**options)[::2] == [True, True]


@pytest.mark.full
def test_where_parameters_may_be_unused_buckets_stay_as_they_are():
    assert outcome(find_unused_parameters=True) == [False, True, True]
