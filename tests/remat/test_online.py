"""Online policies: the published results, and what was done judged by the simulator."""

import json
import math
import os
import random
from pathlib import Path

import pytest

pytest.importorskip("numba", reason='online policies are compiled by numba: pip install "detrain-run[plan]"')

from detrain.errors import GraphError
from detrain.remat import builders, dtrlog, simulator
from detrain.remat.graph import GraphBuilder
from detrain.remat.online.policy import DEALLOCATIONS, THRASH_LIMIT, Runner, parse
from detrain.remat.online.scores import HEURISTICS
from detrain.remat.schedule import Action, Step, keep_all

STEPS = [
    builders.linear(12), builders.chain(7), builders.residual(4), builders.u_net(3), builders.recurrent(4), builders.tree(3),
    builders.transformer(2),
]  # fmt: skip
POLICIES = [
    f"{heuristic}:{deallocation}" for heuristic in HEURISTICS for deallocation in DEALLOCATIONS
    if deallocation != "banish" or not (heuristic.startswith(("eq", "msps", "dtr-eq")))
]  # fmt: skip


def any_graph(seed):
    """Operators with one or two outputs, aliases, inputs that stand twice, references that come and go."""
    rng = random.Random(seed)
    made = GraphBuilder(f"any-{seed}")
    live = {made.constant("w", rng.randrange(9)): 1}
    for number in range(rng.randrange(4, 30)):
        inputs = [rng.choice(list(live)) for _ in range(rng.randrange(1, 4))]
        outputs = [(f"t{number}.{one}", rng.randrange(1, 9), -1) for one in range(rng.randrange(1, 3))]
        if rng.random() < 0.3:
            outputs.append((f"v{number}", 0, rng.randrange(len(inputs))))
        live |= dict.fromkeys(made.compute("f", rng.randrange(6), inputs, outputs), 1)
        for _ in range(rng.randrange(3)):
            one = rng.choice(list(live))
            if rng.random() < 0.3:
                made.get(one)
                live[one] += 1
            elif one and len(live) > 2:
                made.release(one)
                live[one] -= 1
                if not live[one]:
                    del live[one]
    return made.build(rng.sample(list(live), min(2, len(live))))


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("graph", STEPS, ids=lambda graph: graph.name)
def test_what_a_policy_says_it_did_is_what_it_takes(graph, name):
    runner, num_fitting = Runner(graph), 0
    assert runner.baseline.peak_bytes == simulator.peak_bytes(graph)
    for share in (10.0, 1.0, 0.8, 0.6, 0.4):  # what is never given back takes more than the peak
        budget_bytes = int(runner.baseline.peak_bytes * share)
        result = runner.run(parse(name), budget_bytes, has_schedule=True)
        outcome = simulator.simulate(graph, result.schedule, budget_bytes)
        if result.status == "ok":
            num_fitting += 1
            assert outcome.failure == ""
        # A run that failed has done what it could.
        assert (outcome.clock_ns + 1, outcome.peak_bytes, outcome.num_again) == (
            result.clock,
            result.peak_bytes,
            result.num_again,
        )
    assert num_fitting


@pytest.mark.parametrize("seed", range(60))
def test_any_graph_under_any_policy_is_done_as_it_should_be(seed):
    graph = any_graph(seed)
    runner = Runner(graph)
    rng = random.Random(seed)
    for name in rng.sample([one for one in POLICIES if "random" not in one and not one.startswith("none:")], 6):
        budget_bytes = rng.randrange(1, runner.baseline.peak_bytes + 2)
        result = runner.run(parse(name), budget_bytes, has_schedule=True)
        outcome = simulator.simulate(graph, result.schedule, budget_bytes)
        assert outcome.clock_ns + 1 == result.clock, name
        assert outcome.peak_bytes == result.peak_bytes <= budget_bytes, name
        if result.status == "thrash":  # given up behind an operator, which may have been the last
            assert result.again_ns > (THRASH_LIMIT - 1) * graph.cost_ns - 1, name
        else:
            assert (outcome.failure == "") == (result.status == "ok"), (name, outcome.failure)


def test_with_room_for_everything_nothing_is_done_again():
    for graph in STEPS:
        runner = Runner(graph)
        assert runner.run(parse("dtr:banish"), runner.baseline.peak_bytes).num_again == 0
        assert simulator.simulate(graph, keep_all(graph)).overhead == 1


@pytest.mark.parametrize(
    ("name", "again"),
    [
        ("dtr", (0.77, 0.90, 0.96)), ("dtr-eq", (0.77, 0.90, 0.96)), ("msps", (0.94, 1.19, 1.43)), ("e*-size", (1.16, 1.46, 1.68)),
        ("dtr-local", (2.52, 7.74, 25.98)), ("lru", (2.52, 7.74, 25.98)),
    ],
)  # fmt: skip
def test_linear_net_takes_as_many_operators_again_as_published(name, again):
    for length, share in zip((64, 256, 1024), again, strict=True):
        runner = Runner(builders.linear(length))
        result = runner.run(parse(name), math.ceil(2 * math.sqrt(length)), limit=math.inf)
        assert (result.status, round(result.again_ns / length, 2)) == ("ok", share)


def test_whichever_goes_is_the_same_each_time():
    runner = Runner(builders.linear(64))
    for name in ("random:eager", "random:banish"):
        first, second = (runner.run(parse(name), 24, limit=9.0, has_schedule=True) for _ in range(2))
        assert first == second
        assert first.num_evictions


def test_an_operator_may_make_more_tensors_than_a_word_has_bits():
    made = GraphBuilder("split")
    weight = made.constant("w", 1)
    (whole,) = made.compute("f", 10**6, [weight], [("a", 100, -1)])
    parts = made.compute("split", 7, [whole], [(f"p{one}", 1, -1) for one in range(100)])
    made.release(made.compute("wait", 100, [weight], [("x", 1, -1)])[0])
    made.release(made.compute("large", 3, [parts[35]], [("l", 60, -1)])[0])  # the first part is evicted for it
    (last,) = made.compute("use", 3, [parts[0]], [("u", 1, -1)])  # and made again, while later ones are there
    made.release(whole)
    graph = made.build([last])
    result = Runner(graph).run(parse("dtr-local:banish"), 260, has_schedule=True)
    assert (result.status, result.num_again) == ("ok", 1)
    assert Step(Action.FREE, whole) in result.schedule.steps  # nothing evicted depends on it any more
    assert simulator.simulate(graph, result.schedule, 260).clock_ns + 1 == result.clock


def test_outputs_may_only_be_counted():
    graph = builders.linear(64)
    runner = Runner(graph)
    with_outputs, without = (
        runner.run(parse("dtr:ignore"), 16, limit=math.inf, has_outputs=has_outputs) for has_outputs in (True, False)
    )
    assert with_outputs.output_bytes == without.output_bytes == 1
    assert (with_outputs.status, without.status) == ("ok", "ok")
    assert without.again_ns <= with_outputs.again_ns


@pytest.mark.parametrize("text", ["", "best:eager", "dtr:never", "msps:banish", "dtr-eq:banish"])
def test_policy_that_there_is_not_is_refused(text):
    with pytest.raises(GraphError, match=text.partition(":")[2] if "never" in text else "heuristic|neighbourhood"):
        parse(text)


#: Overhead from ratio 1.0 down, as measured with the published simulator on the published logs (DTR, 2020); the last word ends the row.
PUBLISHED = {
    ("U-Net (6)", "dtr:eager"): "1.0027 1.0331 1.0577 1.0846 1.1308 1.1587 oom",
    ("U-Net (6)", "dtr-eq:eager"): "1.0027 1.0331 1.0577 1.0846 1.1489 1.1587 oom",
    ("U-Net (6)", "dtr-local:eager"): "1.0027 1.0279 1.0561 1.0910 1.1370 1.8469 oom",
    ("U-Net (6)", "msps:eager"): "1.0027 1.0160 1.0333 1.0493 1.0878 1.1325 1.2413 1.5851 oom",
    ("U-Net (6)", "lru:eager"): "1.0083 1.0387 1.0620 1.1042 1.2245 thrash",
    ("U-Net (6)", "size:eager"): "1.0133 1.0434 1.1281 1.1584 1.5921 1.6591 oom",
    ("U-Net (6)", "dtr:ignore"): "1.1573 1.3326 1.2228 1.1989 1.7250 1.7591 oom",
    ("U-Net (6)", "dtr:banish"): "1.0000 1.0119 oom",
    ("ResNet-32 (56)", "dtr:eager"): "1.0021 1.0131 1.0248 1.0463 1.0737 1.1068 1.1404 1.1782 1.3711 thrash",
    ("ResNet-32 (56)", "dtr-eq:eager"): "1.0021 1.0131 1.0248 1.0463 1.0737 1.1068 1.1404 1.1786 1.3322 oom",
    ("ResNet-32 (56)", "dtr-local:eager"): "1.0021 1.0131 1.0413 1.0675 1.1333 1.1965 thrash",
    ("ResNet-32 (56)", "msps:eager"): "1.0021 1.0127 1.0244 1.0371 1.0631 1.1062 1.1456 1.2087 1.4306 oom",
    ("ResNet-32 (56)", "lru:eager"): "1.0025 1.0323 1.0672 1.0952 1.1301 thrash",
    ("ResNet-32 (56)", "size:eager"): "1.0021 1.0299 1.0646 1.0925 1.2336 1.4516 1.7384 thrash",
    ("ResNet-32 (56)", "dtr:ignore"): "1.1339 1.1698 1.1958 1.2456 1.3320 1.3856 1.5610 1.8446 thrash",
    ("ResNet-32 (56)", "dtr:banish"): "1.0000 1.0131 1.0248 1.0460 1.0766 1.1060 1.1408 1.1782 1.2299 oom",
    ("InceptionV4 (64)", "dtr:eager"): "1.0007 1.0079 1.0244 1.0498 1.0684 1.0919 1.1306 1.2189 thrash",
    ("InceptionV4 (64)", "dtr-eq:eager"): "1.0007 1.0079 1.0244 1.0442 1.0662 1.0919 1.1380 1.2435 oom",
    ("InceptionV4 (64)", "msps:eager"): "1.0010 1.0069 1.0265 1.0465 1.0706 1.1050 1.1841 1.3891 oom",
    ("InceptionV4 (64)", "dtr:ignore"): "1.1501 1.1784 1.2183 1.2569 1.3002 1.4160 1.6684 thrash",
    ("InceptionV4 (64)", "dtr:banish"): "1.0000 1.0081 1.0249 1.0483 1.0768 1.1391 oom",
    ("Transformer (10)", "dtr:eager"): "1.0015 1.0090 1.0199 1.0314 1.0442 1.0584 1.0832 1.1234 1.3517 thrash",
    ("Transformer (10)", "dtr-eq:eager"): "1.0015 1.0090 1.0199 1.0314 1.0442 1.0584 1.0914 1.1238 1.5449 oom",
    ("Transformer (10)", "dtr-local:eager"): "1.0015 1.0097 1.0219 1.0373 1.0601 1.1121 1.1610 1.5049 1.6417 oom",
    ("Transformer (10)", "msps:eager"): "1.0015 1.0089 1.0180 1.0353 1.0477 1.0666 1.0886 1.1125 1.3326 oom",
    ("Transformer (10)", "dtr:ignore"): "1.1321 1.1557 1.1754 1.1924 1.2109 1.2353 1.2808 1.3218 1.7811 thrash",
    ("Transformer (10)", "dtr:banish"): "1.0000 1.0090 1.0220 1.0360 1.0486 1.0639 1.0779 oom",
    ("LSTM (512)", "dtr:eager"): "1.0000 1.0174 1.0276 1.0320 1.0417 1.0651 1.1434 1.3005 1.5985 oom",
    ("LSTM (512)", "dtr-eq:eager"): "1.0000 1.0174 1.0268 1.0314 1.0425 1.0710 1.1590 1.3651 1.5502 oom",
    ("LSTM (512)", "msps:eager"): "1.0000 1.0231 1.0314 1.0410 1.0569 1.0713 1.1208 1.3819 thrash",
    ("InceptionV4 (64)", "dtr-local:eager"): "1.0010 1.0096 1.0277 1.0455 1.0658 1.3341 thrash",
    ("InceptionV4 (64)", "lru:eager"): "1.0010 1.0252 1.0427 1.0695 1.0900 thrash",
    ("InceptionV4 (64)", "size:eager"): "1.0069 1.0176 1.0371 1.0541 1.0721 1.0997 thrash",
    ("Transformer (10)", "lru:eager"): "1.0000 1.0334 1.0649 1.0985 1.1337 thrash",
    ("Transformer (10)", "size:eager"): "1.0025 1.0162 1.0283 1.0461 1.0533 1.0655 1.0803 1.1347 thrash",
    ("LSTM (512)", "dtr-local:eager"): "1.0000 1.0135 1.0595 1.1099 1.1580 thrash",
    ("LSTM (512)", "lru:eager"): "1.0000 1.0433 1.0858 1.1300 thrash",
    ("LSTM (512)", "size:eager"): "1.0000 thrash",
}


@pytest.fixture(scope="module")
def logs():
    """The published logs, by the names of their models: DETRAIN_DTR_LOGS is the folder with their manifest.json."""
    folder = os.environ.get("DETRAIN_DTR_LOGS")
    if not folder:
        pytest.skip("DETRAIN_DTR_LOGS does not name the folder of DTR's published logs")
    manifest = json.loads((Path(folder) / "manifest.json").read_text(encoding="utf-8"))
    return {model["name"]: Path(folder) / Path(model["log"]).name for model in manifest["models"]}


@pytest.fixture(scope="module")
def runners(logs):
    return {}


@pytest.mark.parametrize(("model", "name"), PUBLISHED)
def test_published_results_are_repeated_to_the_last_digit(logs, runners, model, name):
    runner = runners.setdefault(model, None) or Runner(dtrlog.read(logs[model]))
    runners[model] = runner
    row = []
    for share in (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1):
        result = runner.run(parse(name), int(runner.baseline.peak_bytes * share))
        row.append(f"{result.overhead:.4f}" if result.status == "ok" else result.status)
        if result.status != "ok":
            break
    assert " ".join(row) == PUBLISHED[model, name]
