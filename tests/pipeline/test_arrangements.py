"""Our own planner against everything that can be done with a few layers on a few devices, equal or not."""

import random
from itertools import combinations, pairwise, permutations, product

import pytest

pytest.importorskip("numba", reason='planners are compiled by numba: pip install "detrain-run[plan]"')

from detrain.errors import GraphError
from detrain.pipeline.judge import Judge
from detrain.pipeline.plan import Workload
from detrain.pipeline.planners.detrain import Question, plan
from detrain.pipeline.pricing import Arrangement
from detrain.pipeline.topology import Device, Level, Topology
from detrain.plans.errors import NoPlanError
from tests.tiers import full_but

from .exhaustive import ideals
from .graphs import chain, layer

#: Of the seeds of each kind how many may be planned slower than the best there is, and by how much.
SEEDS, NUM_SLOWER, SLOWER = 16, 1, 1.05


def asked(seed, kind, memory_bytes):
    """A chain, devices of which most differ, and a batch."""
    rng = random.Random(f"{kind} {seed}")
    layers = [
        layer(
            f"n{number}", rng.choice([1, 2, 5, 10]), rng.choice([1, 4, 10, 20]), rng.choice([1e5, 1e6, 1e7]),
            rng.choice([0, 1e5, 1e7, 1e8]),
        )
        for number in range(rng.choice([2, 3, 4]))
    ]  # fmt: skip
    count = rng.choice([2, 3, 4])
    devices = tuple(Device(rng.choice(memory_bytes), rng.choice([1.0, 0.8, 0.5, 0.25])) for _ in range(count))
    if kind == "flat":
        topology = Topology(devices, (Level(rng.choice([1e9, 1e10]), (0,) * count),))
    elif kind == "two machines":
        machines = tuple(int(number >= count // 2) for number in range(count))
        topology = Topology(devices, (Level(2.5e10, machines), Level(rng.choice([1e9, 3e9]), (0,) * count)))
    else:
        rows = [[0.0] * count for _ in range(count)]
        for one, other in combinations(range(count), 2):
            rows[one][other] = rows[other][one] = rng.choice([5e8, 1e9, 1e10])
        topology = Topology(devices, bandwidths=tuple(map(tuple, rows)))
    return Question(chain(*layers), topology, Workload(8, rng.choice([16, 32, 64]), rng.choice([4, 8])))


def arrangements(states, num_devices):
    """All rows of stages, all ways of giving them devices, all numbers of copies; a stage keeps all or nothing."""
    for count in range(1, min(num_devices, len(states)) + 1):
        for cuts in combinations(states[:-1], count - 1):
            if any(one & ~other for one, other in pairwise(cuts)):
                continue
            for stage_of in product(range(count + 1), repeat=num_devices):
                devices = [tuple(number for number, at in enumerate(stage_of) if at == stage) for stage in range(count)]
                if not all(devices):
                    continue
                for recompute in product(("", "all"), repeat=count):
                    yield Arrangement((*cuts, states[-1]), tuple(devices), 1, recompute)
                    for copies in range(2, num_devices + 1):
                        if all(len(own) % copies == 0 for own in devices):
                            for orders in product(*(dealt(own, copies) for own in devices)):
                                yield Arrangement((*cuts, states[-1]), orders, copies, recompute)


def dealt(devices, copies):
    """All ways of giving each copy as many; who is first in a copy makes no difference."""
    size = len(devices) // copies
    for order in permutations(devices):
        if all(one < other for place, (one, other) in enumerate(pairwise(order), start=1) if place % size):
            yield order


def least(question):
    """The best score of all arrangements."""
    judge = Judge(question.profile, question.topology, question.workload)
    scores = []
    for arranged in arrangements(ideals(question.profile), question.topology.num_devices):
        try:
            scores.append(judge.score(arranged))
        except GraphError:
            continue  # more copies than samples
    return min(scores), judge.alone_s


@pytest.mark.parametrize("memory_bytes", [(16e9,), (4e8, 5e8, 8e8)], ids=["roomy", "tight"])
@pytest.mark.parametrize("kind", full_but(["flat"], ["flat", "two machines", "matrix"]))
def test_plans_on_unlike_devices_are_hardly_slower_than_the_best_there_is(kind, memory_bytes):
    slower, num_planned = {}, 0
    for seed in range(SEEDS):
        question = asked(seed, kind, memory_bytes)
        best, alone_s = least(question)
        try:
            found = plan(question)
        except NoPlanError:
            assert best.missing_share > 0, f"there is a plan for seed {seed}"
            continue
        num_planned += 1
        ratio = alone_s / found.speedup / best.sample_s
        if ratio > 1 + 1e-9:
            slower[seed] = ratio
    assert num_planned > SEEDS / 3
    assert len(slower) <= NUM_SLOWER, slower
    assert max(slower.values(), default=1.0) <= SLOWER, slower
