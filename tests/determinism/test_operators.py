"""`detrain diff --op`: which operator made two runs part, and at which line of the script."""

from __future__ import annotations

import json

import pytest

from detrain.proof import operators

pytestmark = pytest.mark.usefixtures("sandbox")

#: What stands after `--plant` is done at batch 37, counted from 0.
TRAINING = """
import sys
import torch
plant = sys.argv[2] if len(sys.argv) > 2 else ""
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(6, 30), torch.nn.Tanh(), torch.nn.Linear(30, 2000))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
data = torch.randn(20, 64, 6)
number = 0
for epoch in range(3):
    for batch in range(20):
        optimizer.zero_grad()
        out = model(data[batch])
        if number == 37 and plant == "order":
            loss = out.square().flatten().flip(0).cumsum(0)[-1] / out.numel()
        elif number == 37 and plant == "threads":
            torch.set_num_threads(torch.get_num_threads() % 2 + 1)
            loss = out.square().sum() / out.numel()
        else:
            loss = out.square().sum() / out.numel()
        loss.backward()
        if number == 37 and plant == "memory":
            model[0].weight.detach().numpy()[3, 2] += 1
        if number == 37 and plant == "generator":
            torch.rand(2)
        optimizer.step()
        number += 1
"""


def line_of(text: str) -> str:
    number = next(n for n, line in enumerate(TRAINING.splitlines(), 1) if text in line)
    return f"script.py:{number}"


@pytest.fixture
def parted(script):
    """Run the script without and with each plant; gives what `diff --op` says of the run without and one with."""
    one = script(TRAINING)
    one.attempt("a", "--every", "10batches")

    def compare(plant: str):
        one.arguments = ["--plant", plant]
        one.attempt(plant, "--every", "10batches")
        return json.loads(one.command("diff", "a", plant, "--op", "--json", status=1))

    return compare


@pytest.mark.full
def test_a_sum_in_another_order_is_found_at_its_line_and_what_no_operator_has_changed_is_told_from_it(parted) -> None:
    result = parted("order")
    found = result["operators"]
    assert (result["parting"]["batches"], result["parting"]["last_same"]) == (38, 37)
    assert found["what"] == "operator"
    assert [each["name"] for each in found["only_a"]] == ["aten::sum"]
    assert {"aten::flip", "aten::cumsum"} <= {each["name"] for each in found["only_b"]}
    assert {each["line"] for each in found["only_b"]} == {line_of("flip")}
    said = operators.format_result(found)
    assert f"only B runs aten::cumsum (float32 [128000]), called at {line_of('flip')}" in said

    result = parted("memory")
    found = result["operators"]
    assert (result["parting"]["batches"], result["parting"]["leaf"]) == (38, "model['0'].weight")
    # What leads to the array is an operator, which the other run does not have; what writes to it is none.
    assert found["what"] == "operator"
    assert {(each["name"], each["line"]) for each in found["only_b"]} == {("aten::detach", line_of("numpy"))}
    assert found["only_a"] == []


@pytest.mark.full
def test_another_result_of_the_same_operator_and_a_generator_advanced_once_are_found(parted) -> None:
    result = parted("threads")  # the same sum with another number of threads is split otherwise
    found = result["operators"]
    assert result["parting"]["batches"] == 38
    assert (found["what"], found["a"]["name"]) == ("output", "aten::sum")
    assert found["a"]["inputs"] == found["b"]["inputs"]
    assert found["b"]["line"] == f"script.py:{int(line_of('set_num_threads')[10:]) + 1}"
    assert "aten::sum (float32 []), called at" in operators.format_result(found)

    result = parted("generator")
    found = result["operators"]
    assert (result["parting"]["batches"], result["parting"]["leaf"]) == (38, "a generator of random numbers")
    assert [(each["name"], each["line"]) for each in found["only_b"]] == [("aten::rand", line_of("torch.rand(2)"))]


def operator(name: str, output: str, inputs: str = "i") -> dict[str, object]:
    return {"name": name, "line": "a.py:1", "backward": "", "inputs": [inputs], "outputs": [output], "shapes": []}


def test_sequences_are_laid_beside_each_other() -> None:
    a = [operator("mm", "1"), operator("add", "2"), operator("sum", "3")]
    assert operators.compare(a, a)["what"] == "nothing"
    assert operators.compare(a, [*a[:2], operator("sum", "4")])["what"] == "output"
    assert operators.compare(a, [*a[:2], operator("sum", "4", "j")])["what"] == "input"
    found = operators.compare(a, [a[0], operator("neg", "5"), a[1], operator("sum", "6")])
    assert (found["what"], found["number"], found["a"]["name"]) == ("operator", 1, "sum")
    assert [one["name"] for one in found["only_b"]] == ["neg"]
    assert operators.compare(a, a[:2])["only_a"] == [a[2]]
