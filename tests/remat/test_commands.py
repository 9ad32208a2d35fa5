"""`detrain remat …` as a user types it."""

import json
import subprocess
import sys
from xml.etree import ElementTree

import pytest

pytest.importorskip("numba", reason='planners are compiled by numba: pip install "detrain-run[plan]"')

from detrain.remat import builders, dtrlog, graphfile
from detrain.remat.simulator import peak_bytes


@pytest.fixture
def remat(tmp_path):
    graphfile.write(tmp_path / "linear.json", builders.linear(24))
    (tmp_path / "other.json").write_text("{}")

    def run(*words):
        command = [sys.executable, "-m", "detrain", "remat", *map(str, words)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    return run


def test_a_log_is_converted_simulated_planned_and_shown(remat, tmp_path):
    dtrlog.write(tmp_path / "step.log", builders.chain(6))
    assert remat("convert", "step.log", "-o", "step.json")[0] == 0
    of_graph, of_log = (
        remat("simulate", name, "--budget", "0.8", "--policy", "dtr:eager", "--json")
        for name in ("step.json", "step.log")
    )
    assert of_graph == of_log
    found = json.loads(of_graph[1])
    assert found["status"] == "ok"
    assert found["peak_bytes"] <= found["budget_bytes"]
    status, out, err = remat("plan", "step.json", "--budget", "0.8", "--planner", "rotor", "-o", "plan.json", "--json")
    assert (status, err) == (0, "")
    assert json.loads(out)["peak_bytes"] <= json.loads(out)["budget_bytes"]
    status, out, _ = remat("show", "plan.json", "-o", "memory.svg")
    assert status == 0
    assert out.splitlines()[1].startswith("rotor: overhead ")
    assert (tmp_path / "memory.svg").read_text().lstrip().startswith("<?xml")
    num_operators = sum(not operator.is_constant for operator in builders.chain(6).operators)
    drawn = ElementTree.parse(tmp_path / "memory.graph.svg").getroot()
    titles = [title.text for title in drawn.iter("{http://www.w3.org/2000/svg}title")]
    assert len(titles) == num_operators
    assert sum(" times" in title for title in titles) > 0
    status, of_log, _ = remat("show", "step.log", "-o", "log.svg")
    assert (status, "keep-all: overhead 1.0000" in of_log) == (0, True)
    assert f" {num_operators} operators, " in of_log
    assert remat("show", "step.json")[1] == of_log
    assert remat("show", "plan.json", "-o", "graph.dot")[0] == 0
    again = [number for number in out.splitlines()[2:] if " times, " in number]
    dot = (tmp_path / "graph.dot").read_text()
    assert dot.count("->") > 20
    assert dot.count('fillcolor="#fdba74"') >= len(again) > 0


def test_a_sweep_has_a_table_and_a_picture(remat, tmp_path):
    status, _, err = remat(
        "sweep", "linear.json", "--budgets", "0.9,0.5,2", "--planners", "chen-greedy,dtr", "-o", "found"
    )
    assert status == 0
    assert len(err.splitlines()) == 6
    header, *rows = (tmp_path / "found" / "sweep.csv").read_text().splitlines()
    assert header == "planner,budget_bytes,overhead,peak_bytes,num_rematerialized,is_optimal,seconds,why"
    assert [row.split(",")[:2] for row in rows] == [
        [name, size] for name in ("chen-greedy", "dtr") for size in ("2", "12", "21")
    ]
    assert (tmp_path / "found" / "overhead.svg").stat().st_size > 1000


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["plan", "linear.json", "--budget", "2", "--planner", "dtr"], 1, "detrain: dtr: 2 bytes are less than the floor of 3"),
        (["plan", "linear.json", "--budget", "0", "--planner", "dtr"], 2, "a share of the peak (0.4) or bytes (4GiB) above zero"),
        (["plan", "linear.json", "--budget", "-3", "--planner", "dtr"], 2, "above zero, not -3"),
        (["plan", "linear.json", "--budget", "0.5", "--planner", "best"], 2, "there is no planner best: it is one of keep-all"),
        (["plan", "nothing.json", "--budget", "0.5", "--planner", "dtr"], 2, "nothing.json"),
        (["simulate", "linear.json", "--budget", "0.5", "--policy", "best:eager"], 2, "there is no heuristic best"),
        (["show", "other.json"], 2, "other.json is neither a plan nor an operator graph nor a log"),
        (["plan", "linear.json", "--budget", "0.5", "--planner", "dtr", "-o", "no/such/place.json"], 2, "cannot be written"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_said(remat, words, status, said):
    found, _, err = remat(*words)
    assert (found, said in err) == (status, True), err


def test_a_share_is_one_of_the_peak(remat):
    found = json.loads(remat("plan", "linear.json", "--budget", "0.5", "--planner", "dtr", "--json")[1])
    assert found["budget_bytes"] == int(peak_bytes(builders.linear(24)) * 0.5)


SCRIPT = """\
import sys
import torch

net = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
optimizer = torch.optim.SGD(net.parameters(), float(sys.argv[1]), momentum=0.9)
for epoch in range(1000):
    for batch in range(10):
        optimizer.zero_grad()
        net(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
    torch.save(net.state_dict(), "model.pt")
"""


@pytest.mark.full
def test_a_step_of_a_script_is_recorded_and_nothing_is_left_of_its_run(remat, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    status, _, err = remat("record", "--steps", "12", "train.py", "0.1")
    assert status == 0, err
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "linear.json",
        "other.json",
        "train.graph.json",
        "train.py",
    ]
    graph = graphfile.read(tmp_path / "train.graph.json")
    assert {"0.weight", "0.bias", "2.weight", "2.bias"} <= {tensor.name for tensor in graph.tensors}
    assert f"peak {peak_bytes(graph):,} bytes" in err
    assert remat("record", "-o", "step.log", "train.py", "0.1")[0] == 0
    assert remat("simulate", "step.log", "--budget", "1.0")[0] == 0
    (tmp_path / "none.py").write_text("print('nothing')")
    status, _, err = remat("record", "none.py")
    assert status == 2
    assert "no training loop was seen, so there is no step to record" in err
