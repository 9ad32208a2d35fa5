"""`detrain remat experiment`: from a file of experiments to tables and pictures."""

import csv
import importlib.util
import json
import os
import re
import signal
import time
from collections import Counter

import pytest
from click.testing import CliRunner

pytest.importorskip("numba", reason='policies are compiled by numba: pip install "detrain-run[plan]"')
pytest.importorskip("matplotlib", reason='pictures are drawn by matplotlib: pip install "detrain-run[plan]"')

from detrain.cli.remat import remat
from detrain.errors import DetrainError, GraphError, MissingExtra, UsageError
from detrain.plans.errors import NoPlanError
from detrain.remat import builders, dtrlog, graphfile, planfile, telemetry
from detrain.remat.experiments import bounds, cells, config, drawing, running
from detrain.remat.experiments.measuring import Timing
from detrain.remat.experiments.results import Row, Store
from detrain.remat.planners import registry
from detrain.remat.schedule import keep_all
from detrain.remat.simulator import budget_of, floor_bytes, peak_bytes, simulate

from .exhaustive import least_ns

#: Planners that need no compiling.
WRITTEN = """
[[experiment]]
name = "small"
kind = "pareto"
models = ["chain"]
budgets = [1.0, 0.75, 0.01]
planners = ["keep-all", "chen-greedy"]
"""
MEASURED = """
[[experiment]]
name = "mine"
kind = "measured"
scripts = ["all.toml 3"]
"""
#: The same of a shorter chain, which takes milliseconds.
SMALL = WRITTEN.replace('models = ["chain"]', 'model = [{ name = "chain", length = 12 }]')


def rows_of(folder):
    document = json.loads((folder / "results.json").read_text())
    assert document["kind"] == "detrain remat experiment results"
    with open(folder / "results.csv", newline="") as file:
        table = list(csv.DictReader(file))
    assert [row["key"] for row in table] == [row["key"] for row in document["rows"]]
    return document["rows"]


def labels_of(path):
    """What stands in a picture: matplotlib draws texts as shapes, and names each in a comment."""
    return set(re.findall(r"<!-- (.*?) -->", path.read_text()))


@pytest.fixture
def experiment(tmp_path, monkeypatch):
    """Runs a file's text in a folder of its own; gives the exit status, what was said, and the folder of results."""
    monkeypatch.chdir(tmp_path)

    def run(text, *words):
        (tmp_path / "all.toml").write_text(text)
        done = CliRunner().invoke(remat, ["experiment", "all.toml", *words], standalone_mode=False)
        if done.exception is not None:
            raise done.exception
        return done.return_value, done.stderr, tmp_path / "all"

    return run


@pytest.fixture
def ran(monkeypatch):
    """The cells that are run, in order."""
    seen = []
    once = running.Bench.row

    def row(self, cell):
        seen.append((cell.planner, cell.budget))
        return once(self, cell)

    monkeypatch.setattr(running.Bench, "row", row)
    return seen


def test_an_experiment_has_a_table_a_document_and_a_picture(experiment):
    status, said, folder = experiment(SMALL)
    assert status == 0
    rows = rows_of(folder)
    assert [(row["planner"], row["budget"], row["status"]) for row in rows] == [
        ("keep-all", "1.0", "ok"), ("keep-all", "0.75", "none"), ("keep-all", "0.01", "none"),
        ("chen-greedy", "1.0", "ok"), ("chen-greedy", "0.75", "ok"), ("chen-greedy", "0.01", "none"),
    ]  # fmt: skip
    graph = builders.chain(12)
    plan = registry.plan(graph, budget_of(graph, "0.75"), "chen-greedy")
    found = rows[4]
    assert (found["overhead"], found["peak_bytes"]) == (plan.outcome.overhead, plan.outcome.peak_bytes)
    assert (found["keep_all_bytes"], found["floor_bytes"]) == (peak_bytes(graph), floor_bytes(graph))
    assert "less than the floor" in rows[5]["why"]
    assert said.splitlines()[1] == f"small: {rows[1]['model']}, 0.75, keep-all: {rows[1]['why']}"
    assert said.splitlines()[-1] == "all: 6 of 6 results, 3 of them no plan"
    assert labels_of(folder / "small.svg") >= {
        "small", "chain(length=12)", "keep-all", "chen-greedy", "constants", "largest operator",
        "budget over the peak of keeping all", "time over the step's, each operator once", "×: no plan",
    }  # fmt: skip


def test_what_is_there_is_not_run_again(experiment, ran):
    experiment(SMALL)
    assert len(ran) == 6
    status, said, folder = experiment(SMALL)
    assert (status, len(ran)) == (0, 6)
    assert said.splitlines()[0] == "6 of 6 results are there; 0 are left"
    before = rows_of(folder)
    experiment(SMALL.replace("[1.0, ", "[1.0, 0.9, "))
    assert ran[6:] == [("keep-all", "0.9"), ("chen-greedy", "0.9")]
    assert [row for row in rows_of(folder) if row["budget"] != "0.9"] == before
    experiment(SMALL, "--fresh")
    assert len(ran) == 14
    assert len(rows_of(folder)) == 6


def test_results_of_another_file_are_not_mixed_with_these(experiment):
    experiment(SMALL)
    with pytest.raises(
        UsageError, match=r"3 results that this file does not ask for \(the first: small, chain.*keep-all"
    ):
        experiment(SMALL.replace('"keep-all", ', ""))
    with pytest.raises(UsageError, match="6 results that this file does not ask for"):
        experiment(SMALL + "time_limit = 3\n")
    assert experiment(SMALL + "time_limit = 3\n", "-o", "other")[0] == 0


def test_a_row_that_was_half_written_is_run_again(experiment, ran, tmp_path):
    _, _, folder = experiment(SMALL)
    rows = rows_of(folder)
    text = (folder / "results.json").read_text()
    for length in range(text.rindex("{") - 1, len(text), 5):
        (folder / "results.json").write_text(text[:length])
        kept = Store(folder).read()
        assert len(kept) in (5, 6)
        assert [row.key for row in kept] == [row["key"] for row in rows[: len(kept)]]
    (folder / "results.json").write_text(text[: text.rindex("{") + 40])
    del ran[:]
    experiment(SMALL)
    assert ran == [("chen-greedy", "0.01")]
    assert [row["key"] for row in rows_of(folder)] == [row["key"] for row in rows]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}\n", "is not results of experiments"),
        ('{"rows": [\n]}\n', "is not results of experiments: its kind must be"),
        ('{"kind": "detrain remat experiment results", "format": 9, "rows": [\n]}\n', "has format 9; this detrain reads format 1"),
        ('{"kind": "detrain remat experiment results", "format": 1, "rows": [\n{"key": "a"},\n{"key": "b"}\n]}\n', "line 2 is not a"),
    ],
)  # fmt: skip
def test_a_document_that_is_no_results_is_refused(experiment, tmp_path, text, said):
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / "results.json").write_text(text)
    with pytest.raises(GraphError, match=re.escape(said)):
        experiment(SMALL)


def test_ctrl_c_ends_with_what_is_there_and_the_next_start_goes_on(experiment, ran, monkeypatch):
    once = registry.plan

    def interrupted(graph, budget_bytes, planner, time_limit_s):
        if len(ran) == 4:
            os.kill(os.getpid(), signal.SIGINT)
        return once(graph, budget_bytes, planner, time_limit_s)

    monkeypatch.setattr(registry, "plan", interrupted)
    status, said, folder = experiment(SMALL)
    assert status == 130
    assert said.splitlines()[-1] == "all: 3 of 6 results, 2 of them no plan"
    assert len(rows_of(folder)) == 3
    assert "keep-all" in labels_of(folder / "small.svg")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    monkeypatch.setattr(registry, "plan", once)
    assert experiment(SMALL)[0] == 0
    assert len(rows_of(folder)) == 6
    assert Counter(ran) == Counter(dict.fromkeys(ran, 1)) + Counter([("chen-greedy", "1.0")])


def test_a_plan_that_ctrl_c_has_cut_short_is_no_result(experiment, monkeypatch):
    """A planner takes Ctrl-C for the end of its time, and returns its best so far."""
    once = registry.plan

    def caught(graph, budget_bytes, planner, time_limit_s):
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(9)
        except KeyboardInterrupt:
            return once(graph, budget_bytes, planner, time_limit_s)

    monkeypatch.setattr(registry, "plan", caught)
    status, _, folder = experiment(SMALL)
    assert status == 130
    assert rows_of(folder) == []
    assert not (folder / "small.svg").exists()


def test_an_error_that_nobody_expects_is_a_row_and_is_tried_again(experiment, monkeypatch):
    once, calls = registry.plan, []

    def fails(graph, budget_bytes, planner, time_limit_s):
        calls.append(planner)
        if planner == "keep-all":
            raise ZeroDivisionError("by\nzero")
        return once(graph, budget_bytes, planner, time_limit_s)

    monkeypatch.setattr(registry, "plan", fails)
    status, said, folder = experiment(SMALL + "retries = 2\n")
    assert status == 1
    assert Counter(calls) == {"keep-all": 9, "chen-greedy": 3}
    assert rows_of(folder)[0]["why"] == "ZeroDivisionError: by zero"
    assert "keep-all: ZeroDivisionError: by zero" in said
    monkeypatch.setattr(registry, "plan", once)
    assert experiment(SMALL)[0] == 0
    assert [row["status"] for row in rows_of(folder)].count("error") == 0


def test_no_plan_within_the_time_limit_is_tried_again_and_no_plan_before_it_is_not(experiment, monkeypatch):
    calls = []

    def finds_none(graph, budget_bytes, planner, time_limit_s):
        calls.append(planner)
        if planner == "keep-all":
            time.sleep(time_limit_s)
        raise NoPlanError("none")

    monkeypatch.setattr(registry, "plan", finds_none)
    assert experiment(SMALL + "retries = 1\ntime_limit = 0.001\n")[0] == 0
    assert Counter(calls) == {"keep-all": 6, "chen-greedy": 3}


def test_repetitions_are_timed_and_warm_ups_are_not(experiment, monkeypatch):
    once, calls = registry.plan, []

    def slow_at_first(graph, budget_bytes, planner, time_limit_s):
        calls.append(planner)
        if len(calls) <= 2:
            time.sleep(0.5)
        return once(graph, budget_bytes, planner, time_limit_s)

    monkeypatch.setattr(registry, "plan", slow_at_first)
    text = SMALL.replace(", 0.75, 0.01", "").replace('"keep-all", ', "")
    _, _, folder = experiment(text + "warm_up = 2\nrepetitions = 3\n")
    (row,) = rows_of(folder)
    assert len(calls) == 5
    assert 0 < row["seconds_least"] <= row["seconds"] <= row["seconds_most"] < 0.5


def test_what_is_left_when_the_time_of_an_experiment_is_over_is_done_at_the_next_start(experiment):
    status, said, folder = experiment(SMALL + "timeout = 1e-9\n")
    assert status == 1
    assert "small: its timeout is over, 5 results are left; the same command goes on" in said
    assert len(rows_of(folder)) == 1  # the first is always run, so that it goes on
    assert experiment(SMALL + "timeout = 60\n")[0] == 0  # another timeout gives no other results
    assert len(rows_of(folder)) == 6


def test_pictures_are_drawn_again_without_running(experiment, ran):
    _, _, folder = experiment(SMALL)
    before = (folder / "small.svg").read_bytes()
    (folder / "small.svg").unlink()
    assert experiment(SMALL, "--redraw")[0] == 0
    assert len(ran) == 6
    assert labels_of(folder / "small.svg") == set(re.findall(r"<!-- (.*?) -->", before.decode()))
    with pytest.raises(UsageError, match="has no results to draw"):
        experiment(SMALL, "--redraw", "-o", "nothing")
    with pytest.raises(UsageError, match="give one of them"):
        experiment(SMALL, "--redraw", "--fresh")


KINDS = """
[[experiment]]
name = "banish"
kind = "banishing"
budgets = [1.0, 0.5]
[[experiment.model]]
name = "residual"
num_blocks = [2, 3]

[[experiment]]
name = "parts"
kind = "ablation"
budgets = [1.0, 0.6]
models = ["step.log"]

[[experiment]]
name = "looks"
kind = "accesses"
budgets = [1.0, "0.8", 30]
planners = ["dtr:eager", "lru:eager"]
model = [{ graph = "step.json" }]

[[experiment]]
name = "theory"
kind = "linear"
lengths = [16, 64]
budgets = ["n", "2 * sqrt(n)"]
planners = ["dtr:eager", "chen-greedy"]
"""


def test_each_kind_has_its_cells_and_its_picture(experiment, tmp_path):
    graph = builders.residual(4)
    dtrlog.write(tmp_path / "step.log", graph)
    graphfile.write(tmp_path / "step.json", graph)
    status, said, folder = experiment(KINDS)
    assert status == 0, said
    assert said.startswith("compiling the simulator; the first time takes about a minute\n")
    rows = rows_of(folder)
    assert Counter(row["experiment"] for row in rows) == {"banish": 12, "parts": 32, "looks": 6, "theory": 8}
    assert {row["planner"] for row in rows if row["experiment"] == "banish"} == {
        "dtr:ignore",
        "dtr:eager",
        "dtr:banish",
    }
    assert len({row["planner"] for row in rows if row["experiment"] == "parts"}) == 16
    assert {row["budget_bytes"] for row in rows if row["experiment"] == "theory"} == {8, 16, 64}
    ok = [row for row in rows if row["status"] == "ok"]
    assert all(row["peak_bytes"] <= row["budget_bytes"] for row in ok)
    assert all(row["overhead"] >= 1 for row in ok)
    plan = registry.plan(graph, budget_of(graph, "0.8"), "dtr:eager")
    (same,) = (row for row in ok if (row["experiment"], row["planner"], row["budget"]) == ("looks", "dtr:eager", "0.8"))
    assert (same["overhead"], same["clock_ns"]) == (plan.outcome.overhead, plan.outcome.clock_ns)
    assert same["num_accesses"] > 0
    assert same["num_evictions"] > 0
    assert labels_of(folder / "banish.svg") >= {
        "residual(num_blocks=2)",
        "residual(num_blocks=3)",
        "dtr:banish",
        "constants",
    }
    assert labels_of(folder / "parts.svg") >= {
        "step.log, over size × staleness", "step.log, over 1", "neighbourhood", "classes", "own cost", "largest operator",
    }  # fmt: skip
    assert labels_of(folder / "looks.svg") >= {"step.json", "metadata accesses", "dtr:eager", "lru:eager"}
    assert labels_of(folder / "theory.svg") >= {
        "budget n", "budget 2*sqrt(n)", "layers", "dtr:eager", "chen-greedy", "at least (Griewank, 1992)", "√n segments (Chen, 2016)",
    }  # fmt: skip


def test_a_policy_that_fails_has_its_way_of_failing_and_its_accesses(experiment):
    text = KINDS[KINDS.index('[[experiment]]\nname = "theory"') :].replace('"n", "2 * sqrt(n)"', '"log2(n)"')
    text = text.replace('"dtr:eager", "chen-greedy"', '"lru:eager"')
    _, _, folder = experiment(text + "limit = 1.5\n")
    rows = rows_of(folder)
    assert {row["status"] for row in rows} <= {"thrash", "oom"}
    assert all(row["num_accesses"] > 0 and row["overhead"] is None and row["why"] for row in rows)


def test_a_policy_can_be_counted_as_it_was_published(experiment):
    text = KINDS[KINDS.index('[[experiment]]\nname = "theory"') :].replace('"n", ', "").replace("[16, 64]", "[64, 256]")
    _, _, folder = experiment(text.replace(', "chen-greedy"', "") + "compat = true\n")
    again = [
        round(row["num_rematerialized"] / length, 2) for row, length in zip(rows_of(folder), (64, 256), strict=True)
    ]
    assert again == [0.77, 0.90]


def read(tmp_path, text):
    (tmp_path / "all.toml").write_text(text)
    return config.read(tmp_path / "all.toml")


def test_lists_among_the_parameters_are_expanded(tmp_path):
    (tmp_path / "a.json").write_text("")
    (tmp_path / "b.json").write_text("")
    (found,) = read(
        tmp_path,
        """
[[experiment]]
name = "many"
kind = "pareto"
models = ["tree", "a.json"]
[[experiment.model]]
name = "dense"
num_blocks = [1, 2]
num_layers = [3, 4]
[[experiment.model]]
graph = ["b.json"]
""",
    )
    assert [model.label for model in found.models] == [
        "tree", "a.json", "dense(num_blocks=1, num_layers=3)", "dense(num_blocks=1, num_layers=4)",
        "dense(num_blocks=2, num_layers=3)", "dense(num_blocks=2, num_layers=4)", "b.json",
    ]  # fmt: skip
    assert found.budgets == ("1.0", "0.9", "0.8", "0.7", "0.6", "0.5", "0.4", "0.3", "0.2", "0.1")
    assert found.planners[0] == "dtr:eager"
    assert (found.time_limit_s, found.timeout_s, found.repetitions, found.limit) == (60.0, None, 1, 2.0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "all.toml: experiment is missing"),
        ("experiment = []", "all.toml has no [[experiment]]"),
        ("[[experiment", "all.toml is not TOML"),
        ("[[experiments]]", "'experiments' is none of experiment"),
        (WRITTEN + "colour = 3", "experiment[0]: 'colour' is none of name, kind"),
        (WRITTEN + WRITTEN, "experiment[1]: name is 'small', as is that of an experiment before it"),
        (WRITTEN.replace('"small"', '"a/b"'), "experiment[0]: name is 'a/b', and files are called after it"),
        (WRITTEN.replace('name = "small"', ""), "experiment[0]: name is missing"),
        (WRITTEN.replace('"pareto"', '"best"'), "experiment[0]: kind is 'best', not one of pareto, ablation, banishing"),
        (WRITTEN.replace('"pareto"', '"ablation"'), "experiment[0]: planners is no key of an experiment of kind ablation"),
        (WRITTEN + 'heuristics = ["dtr"]', "experiment[0]: heuristics is no key of an experiment of kind pareto"),
        (WRITTEN.replace('"pareto"', '"linear"'), "experiment[0]: models is no key of an experiment of kind linear"),
        (WRITTEN + 'scripts = ["train.py"]', "experiment[0]: scripts is no key of an experiment of kind pareto"),
        (MEASURED.replace("all.toml 3", "train.py 3"), "experiment[0]: scripts names 'train.py', and there is no such file in"),
        (MEASURED.replace("all.toml 3", "'all.toml"), "experiment[0]: scripts is"),
        (MEASURED.replace("all.toml 3", ""), "experiment[0]: scripts is [''], and '' names no script"),
        (MEASURED.replace('["all.toml 3"]', "[]"), "experiment[0]: there is no script to be measured: name some in scripts"),
        (MEASURED + 'models = ["chain"]', "experiment[0]: models is no key of an experiment of kind measured"),
        (MEASURED + "limit = 3", "experiment[0]: limit is no key of an experiment of kind measured"),
        (MEASURED + "budgets = [3]", "experiment[0]: budgets: budgets 3: expected bytes (6GiB, 500MB, 1000000), or a share"),
        (MEASURED + 'planners = ["best"]', "experiment[0]: planners: there is no planner best"),
        (WRITTEN.replace('models = ["chain"]', ""), "experiment[0]: there is no model: name some in models"),
        (WRITTEN.replace('["chain"]', '["chian"]'), "experiment[0]: models names 'chian', which is neither a file in"),
        (WRITTEN.replace('["chain"]', '["chain", "chain"]'), "experiment[0]: models has chain twice"),
        (WRITTEN + "[[experiment.model]]\nname = 'chain'\nlength = [8, 32]", "experiment[0]: models has chain(length=32) twice"),
        (WRITTEN.replace('["chain"]', '"chain"'), "experiment[0]: models is 'chain', not a list"),
        (WRITTEN + "[[experiment.model]]\ndepth = 3", "experiment[0]: model[0]: a model has either a name or a graph"),
        (WRITTEN + "[[experiment.model]]\nname = 'tree'\ngraph = 'a'", "experiment[0]: model[0]: a model has either"),
        (WRITTEN + "[[experiment.model]]\nname = 'bush'", "experiment[0]: model[0]: name is 'bush', not one of chain, dense"),
        (WRITTEN + "[[experiment.model]]\nname = 'tree'\nlength = 3", "experiment[0]: model[0]: 'length' is none of name, depth"),
        (WRITTEN + "[[experiment.model]]\nname = 'tree'\ndepth = 0", "experiment[0]: model[0]: depth is 0, not a whole number from 1"),
        (WRITTEN + "[[experiment.model]]\nname = 'tree'\ndepth = [1, 'a']", "experiment[0]: model[0]: depth is [1, 'a'], not a list"),
        (WRITTEN + "[[experiment.model]]\nname = 'tree'\ndepth = []", "experiment[0]: model[0]: depth is [], and an empty list"),
        (WRITTEN + "[[experiment.model]]\ngraph = 'no.json'", "experiment[0]: model[0]: graph is 'no.json', and there is no such file"),
        (WRITTEN + "[[experiment.model]]\ngraph = 'all.toml'\ndepth = 2", "experiment[0]: model[0]: 'depth' is none of graph"),
        (WRITTEN.replace("[1.0, 0.75, 0.01]", "[]"), "experiment[0]: budgets is [], and an empty list has no cell"),
        (WRITTEN.replace("0.01", "-1"), "experiment[0]: budgets: a budget is a share of the peak (0.4) or bytes (4GiB) above zero, not -1"),
        (WRITTEN.replace("0.01", "true"), "experiment[0]: budgets is [1.0, 0.75, True], not a list of numbers and texts"),
        (WRITTEN.replace("0.01", "1.0"), "experiment[0]: budgets has 1.0 twice"),
        (WRITTEN.replace("keep-all", "keep"), "experiment[0]: planners: there is no planner keep: it is one of keep-all"),
        (WRITTEN.replace("keep-all", "best:eager"), "experiment[0]: planners: there is no heuristic best"),
        (WRITTEN.replace("keep-all", "dtr-eq:banish"), "experiment[0]: planners: dtr-eq:banish: banished tensors"),
        (WRITTEN.replace('"pareto"', '"accesses"'), "experiment[0]: planners names keep-all; accesses are counted of online policies"),
        (WRITTEN + "time_limit = 0", "experiment[0]: time_limit is 0, not a number above zero"),
        (WRITTEN + "timeout = -1", "experiment[0]: timeout is -1, not a number above zero"),
        (WRITTEN + "repetitions = 0", "experiment[0]: repetitions is 0, not a whole number from 1 on"),
        (WRITTEN + "warm_up = 0.5", "experiment[0]: warm_up is 0.5, not a whole number from 0 on"),
        (WRITTEN + "retries = 'many'", "experiment[0]: retries is 'many', not a whole number from 0 on"),
        (WRITTEN + "limit = 1", "experiment[0]: limit is 1, not a number above 1"),
        (WRITTEN + "compat = 'yes'", "experiment[0]: compat is 'yes', not true or false"),
        ('[[experiment]]\nname = "b"\nkind = "banishing"\nmodels = ["tree"]\nheuristics = ["dtr-eq"]', "[0]: heuristics: dtr-eq:banish"),
        ('[[experiment]]\nname = "l"\nkind = "linear"\nlengths = [1]', "experiment[0]: lengths is [1], not a list of whole"),
        ('[[experiment]]\nname = "l"\nkind = "linear"\nbudgets = ["n*n"]', "experiment[0]: budgets: a budget of a linear network is n"),
        ('[[experiment]]\nname = "l"\nkind = "linear"\nbudgets = ["0*n"]', "experiment[0]: budgets: a budget of a linear network is n"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_file_is_named_by_table_and_key(tmp_path, text, said):
    with pytest.raises(DetrainError, match=re.escape(said)) as caught:
        read(tmp_path, text)
    assert caught.value.exit_status == 2
    assert str(tmp_path / "all.toml") in str(caught.value)


def test_a_model_that_is_none_is_found_before_the_first_cell(experiment, ran, tmp_path):
    (tmp_path / "broken.json").write_text("{}")
    with pytest.raises(GraphError, match=r"broken\.json.* is not an operator graph"):
        experiment(WRITTEN.replace('["chain"]', '["chain", "broken.json"]'))
    assert ran == []


def test_that_nothing_can_be_drawn_is_known_before_the_first_cell(experiment, ran, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "matplotlib" else name)
    with pytest.raises(MissingExtra, match="matplotlib is not installed: pip install"):
        experiment(SMALL)
    assert ran == []


def test_budgets_of_a_length_are_rounded_up():
    assert [bounds.budget_within(rule, 100) for rule in ("n", "n/3", "2*sqrt(n)", "log2(n)", "1.5 * log2(n) / 2")] == [
        100, 34, 20, 7, 5,
    ]  # fmt: skip
    assert [bounds.budget_within(rule, 64) for rule in bounds.RULES] == [64, 32, 64, 48, 32, 16, 8, 18, 6]


@pytest.mark.parametrize("length", [3, 5, 7])
def test_no_schedule_of_a_linear_network_is_below_the_bound(length):
    graph = builders.linear(length)
    for budget in range(3, length + 3):
        least = least_ns(graph, budget)
        if least is not None:
            bound = bounds.least_again(length, budget)
            assert bound is not None
            assert bound <= least - graph.cost_ns <= bound + length


def test_the_bound_is_that_of_the_binomial_rule():
    assert [bounds.least_again(length, 1000) for length in (2, 64, 999)] == [0, 0, 0]
    assert bounds.least_again(1, 1) == 0
    assert bounds.least_again(9, 1) is None
    # One checkpoint, which is the start: the k-th step back takes k steps forward.
    assert bounds.least_again(9, 2) == sum(range(8)) - 7
    assert bounds.chen_again(64, 16) == 56
    assert bounds.chen_again(64, 15) is None


@pytest.mark.parametrize("name", builders.MODELS)
def test_every_model_that_can_be_named_is_a_step_forward_and_back(name):
    model = builders.MODELS[name]
    graph = model.build(**model.defaults)
    assert not simulate(graph, keep_all(graph)).failure
    assert 10 < len(graph.operators) < 2000
    assert any(operator.is_backward for operator in graph.operators)
    assert floor_bytes(graph) < 0.7 * peak_bytes(graph)


def test_a_picture_without_any_plan_still_has_its_zones(tmp_path):
    row = Row("k", "e", "pareto", "m", "0.1", "dtr:eager", "oom", 4, 4, 100, 10, 30, 10, why="it runs out of memory")
    for kind in config.KINDS:
        drawing.draw(tmp_path / f"{kind}.svg", [Row(**{**vars(row), "kind": kind, "budget": "n"})])
    assert labels_of(tmp_path / "pareto.svg") >= {"m", "constants", "largest operator"}


def test_operators_and_storages_of_a_plan_are_tables(tmp_path):
    graph = builders.chain(12)
    plan = registry.plan(graph, budget_of(graph, "0.8"), "chen-greedy")
    planfile.write(tmp_path / "plan.json", graph, plan)
    done = CliRunner().invoke(
        remat, ["show", str(tmp_path / "plan.json"), "--csv", str(tmp_path / "tables")], standalone_mode=False
    )
    assert done.return_value == 0, done.output
    tables = {}
    for name in ("operators", "storages"):
        with open(tmp_path / "tables" / f"{name}.csv", newline="") as file:
            tables[name] = list(csv.DictReader(file))
    assert list(tables["operators"][0]) == ["operator", "name", "cost_ns", "num_runs", "total_ns"]
    assert list(tables["storages"][0]) == ["storage", "name", "size_bytes", "num_made", "held_byte_ns"]
    assert sum(int(row["total_ns"]) for row in tables["operators"]) == plan.outcome.clock_ns
    assert [int(row["num_runs"]) for row in tables["operators"]] == list(plan.outcome.counts)
    assert sum(int(row["num_made"]) for row in tables["storages"]) == sum(plan.outcome.counts)
    assert {int(row["storage"]): int(row["held_byte_ns"]) for row in tables["storages"]} == plan.outcome.held_byte_ns


def test_a_simulation_has_the_same_tables(tmp_path):
    graphfile.write(tmp_path / "step.json", builders.chain(6))
    words = ["simulate", str(tmp_path / "step.json"), "--budget", "0.8", "--csv", str(tmp_path / "tables")]
    assert CliRunner().invoke(remat, words, standalone_mode=False).return_value == 0
    assert (tmp_path / "tables" / "operators.csv").read_text().startswith("operator,name,")
    assert (tmp_path / "tables" / "storages.csv").read_text().startswith("storage,name,")


def test_a_storage_that_two_operators_outputs_share_is_made_once():
    made = builders.GraphBuilder("views")
    (base,) = made.compute("f", 2, [], [("a", 8, -1)])
    (view,) = made.compute("view", 1, [base], [("b", 0, 0)])
    graph = made.build([view])
    schedule = keep_all(graph)
    (row,) = telemetry.storages(graph, schedule, simulate(graph, schedule))
    assert (row.name, row.num_made, row.held_byte_ns) == ("a", 1, 8)


def test_a_script_is_measured_beside_itself_without_a_budget(tmp_path):
    """The least of the repetitions' medians counts, and what has no room is a result."""
    (tmp_path / "all.toml").write_text(
        MEASURED
        + 'budgets = [0.5, "2MB", 0.1]\nplanners = ["online", "dtr"]\nrepetitions = 2\nbatches = 4\nwarm_up = 1'
    )
    orders = []

    def measure(order):
        orders.append(order)
        if order.memory_budget == "0.1":
            raise NoPlanError("there is\nno room")
        batch_s = {"": 2.0, "0.5": 3.0}.get(order.memory_budget, 4.0)
        disturbed = 1.0 if len(orders) % 2 else 0.0
        return Timing((9.0, batch_s + disturbed, batch_s + disturbed), 6_000_000, 3_000_000, 7, 8, "")

    all_cells = cells.cells_of(config.read(tmp_path / "all.toml"))
    ended = running.run(all_cells, [], Store(tmp_path), measure=measure)
    assert [(row.budget, row.planner, row.status, row.overhead) for row in ended.rows] == [
        ("0.5", "online", "ok", 1.5), ("2MB", "online", "ok", 2.0), ("0.1", "online", "oom", None),
        ("0.5", "dtr", "ok", 1.5), ("2MB", "dtr", "ok", 2.0), ("0.1", "dtr", "oom", None),
    ]  # fmt: skip
    assert ended.rows[2].why == "there is no room"
    assert ended.rows[0].keep_all_bytes == 6_000_000
    assert orders[0].words == ("all.toml", "3")
    assert (orders[0].num_batches, orders[0].num_before, orders[0].memory_budget) == (4, 1, "")
    assert {order.most_planning_s for order in orders if order.planner == "dtr"} == {60.0}
    drawing.draw(tmp_path / "mine.svg", ended.rows)
    assert {"all.toml 3", "online", "dtr", "×: no room"} <= labels_of(tmp_path / "mine.svg")


TRAINING = """
import sys
import torch
from torch import nn
torch.manual_seed(0)
parts = [part for _ in range(8) for part in (nn.Linear(32, 32), nn.Tanh())]
model = nn.Sequential(*parts, nn.Linear(32, 2))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for epoch in range(int(sys.argv[1])):
    for number in range(20):
        loss = model(torch.randn(512, 32)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    open("written", "w").write("x")
"""


@pytest.mark.full
def test_a_script_is_measured_and_leaves_nothing_behind(experiment, tmp_path):
    (tmp_path / "train.py").write_text(TRAINING)
    text = MEASURED.replace("all.toml 3", 'train.py 500", "train.py 0')
    status, said, folder = experiment(text + 'budgets = [0.6, "1GB"]\nplanners = ["dtr"]\nbatches = 5')
    assert status == 1
    assert "ended before 3 and 5 batches were trained on" in said
    small, large, *failed = rows_of(folder)
    assert small["peak_bytes"] <= small["budget_bytes"] < large["peak_bytes"] == small["keep_all_bytes"]
    assert small["num_rematerialized"] > 0
    assert large["num_rematerialized"] == 0
    assert {row["status"] for row in failed} == {"error"}
    assert not (tmp_path / "written").exists()
