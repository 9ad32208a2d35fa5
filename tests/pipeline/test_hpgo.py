"""DAPPLE's Python interface, in our words."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numba", reason='planners are compiled by numba: pip install "detrain-run[plan]"')

import detrain.pipeline
from detrain.errors import GraphError, UsageError
from detrain.pipeline import (
    Conductor,
    conductor_from_torch_graph_and_seps,
    devices_from_seps,
    graphtext,
    model_from_torch_graph,
)
from detrain.pipeline.judge import judge
from detrain.pipeline.plan import Workload
from detrain.pipeline.planners import dapple

from .graphs import chain, layer

PROFILE = chain(*(layer(f"n{number}", 20, 40, 1e6, 1e6, "Linear") for number in range(6)))
PROFILES = Path(__file__).parents[3] / "shared/data/profiles"
needs_profiles = pytest.mark.skipif(not PROFILES.is_dir(), reason="the published profiles are not beside the checkout")


@pytest.fixture
def conductor(tmp_path):
    """Of 8 samples a mini-batch and 64 a step, on two machines of two."""
    graphtext.write(tmp_path / "graph.txt", PROFILE)
    return conductor_from_torch_graph_and_seps(tmp_path / "graph.txt", 8, 64, [2, 4])


def test_what_is_asked_of_it_is_a_profile_a_workload_and_machines(conductor, tmp_path):
    assert (conductor.profile, conductor.workload) == (PROFILE, Workload(8, 64, 8))
    assert conductor.topology == devices_from_seps([2, 4])
    assert [(level.bandwidth, level.groups) for level in conductor.topology.levels] == [
        (25e9, (0, 0, 1, 1)),
        (1e9, (0, 0, 0, 0)),
    ]
    assert model_from_torch_graph(tmp_path / "graph.txt", 8, 4) == (PROFILE, Workload(8, 4, 4))
    knobs = conductor_from_torch_graph_and_seps(
        str(tmp_path / "graph.txt"),
        8,
        64,
        [4],
        micro_batch=2,
        state_factor=2,
        peak_activation_bytes=1e6,
        memory_bytes=1e9,
    )
    assert knobs == Conductor(PROFILE, devices_from_seps([4], memory_bytes=1e9), Workload(8, 64, 2, 2), 1e6)


def test_a_plan_comes_with_its_closed_form_and_the_simulators_figure(conductor):
    found = conductor.orchestrate("dapple")
    judged = judge(found.plan, PROFILE, conductor.topology, conductor.workload)
    assert (found.speedup, found.fits) == (judged.speedup, True)
    assert found.closed_form_speedup == dapple.plan(PROFILE, conductor.topology, conductor.workload).speedup
    assert [device for stage in found.stages for device in stage[3]] == [0, 1, 2, 3]
    ours = conductor.orchestrate()
    assert ours.speedup == pytest.approx(ours.closed_form_speedup)
    assert ours.speedup >= max(found.speedup, conductor.data_parallel_speedup()) * (1 - 1e-12)
    assert 1 < conductor.data_parallel_closed_forms().no_overlap < 4


def test_a_ported_script_gets_what_the_published_planner_gives(conductor):
    published = dapple.plan(PROFILE, conductor.topology, conductor.workload, is_compat=True)
    speedup, stages = conductor.py_orchestrate()
    assert speedup == published.speedup
    assert stages == [(stage.start, stage.end, stage.replicas, list(stage.devices)) for stage in published.stages]


@needs_profiles
def test_the_published_example_gives_the_published_plan():
    """(0, 16, 8) and (16, 28, 8) on devices 0 to 7 and 8 to 15, with 14.0315 (measured with the published planner)."""
    conductor = conductor_from_torch_graph_and_seps(PROFILES / "dapple/xlnet-24-pbs-1.txt", 1, 128, [8, 16])
    speedup, stages = conductor.py_orchestrate()
    assert speedup == pytest.approx(14.0315, abs=5e-5)
    assert stages == [(0, 16, 8, list(range(8))), (16, 28, 8, list(range(8, 16)))]


@pytest.mark.parametrize("seps", [[], [8, 4], [0, 4], [4, 4]])
def test_separators_that_do_not_rise_are_refused(seps):
    with pytest.raises(GraphError, match=r"separators are rising numbers above zero, as in \[8, 16\], not "):
        devices_from_seps(seps)


def test_an_unknown_planner_is_refused(conductor):
    with pytest.raises(UsageError, match="there is no planner best"):
        conductor.orchestrate("best")


def test_the_names_are_loaded_at_their_first_use():
    assert set(detrain.pipeline.__all__) <= set(dir(detrain.pipeline))
    assert all(getattr(detrain.pipeline, name) for name in detrain.pipeline.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'HPGO'"):
        _ = detrain.pipeline.HPGO
    script = "import detrain, detrain.pipeline, sys; assert 'numpy' not in sys.modules and 'detrain.pipeline.plan' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
