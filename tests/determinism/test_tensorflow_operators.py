"""`detrain diff --op` of TensorFlow runs, and the log of operators behind it."""

from __future__ import annotations

import json

import pytest

#: What stands after `--plant` is done at batch 17, counted from 0. A step of torch stands beside TensorFlow's.
TRAINING = """
import sys
import tensorflow as tf
import torch
plant = sys.argv[2] if len(sys.argv) > 2 else ""
tf.random.set_seed(0)
data = tf.random.normal([20, 8, 6])
weight, bias = tf.Variable(tf.random.normal([6, 300])), tf.Variable(tf.zeros([300]))
other = torch.zeros(3, requires_grad=True)

@tf.function
def step(batch, how):
    with tf.GradientTape() as tape:
        out = tf.nn.tanh(batch @ weight + bias)
        if how == "order":
            loss = tf.cumsum(tf.reverse(tf.reshape(tf.square(out), [-1]), [0]))[-1]
        else:
            loss = tf.reduce_sum(tf.square(out))
    for variable, gradient in zip((weight, bias), tape.gradient(loss, (weight, bias))):
        variable.assign_sub(0.001 * gradient)
    return loss

step(data[0], "")
number = 0
for epoch in range(2):
    for batch in range(20):
        torch.square(other - 1).sum().backward()
        how = plant if number == 17 else ""
        loss = step(data[batch], how)
        if how == "eager":
            bias.assign_add(tf.ones([300]))
        number += 1
"""


def line_of(text: str) -> str:
    number = next(n for n, line in enumerate(TRAINING.splitlines(), 1) if text in line)
    return f"script.py:{number}"


@pytest.mark.full
@pytest.mark.usefixtures("sandbox")
def test_an_operator_inside_a_function_and_an_eager_one_are_found_at_their_lines(script) -> None:
    one = script(TRAINING)
    one.attempt("a", "--every", "10batches")
    results = {}
    for plant in ("order", "eager"):
        one.arguments = ["--plant", plant]
        one.attempt(plant, "--every", "10batches")
        results[plant] = json.loads(one.command("diff", "a", plant, "--op", "--json", status=1))
        parting = results[plant]["parting"]
        assert (parting["batches"], parting["last_same"]) == (18, 17)

    found = results["order"]["operators"]
    assert found["what"] == "operator"
    assert found["notes"] == []  # so the log has not changed a bit of what it is taken of
    assert {"ReverseV2", "Cumsum"} <= {each["name"] for each in found["only_b"]}
    assert {each["line"] for each in found["only_b"] if not each["backward"]} == {line_of("tf.reverse")}
    assert {each["line"] for each in found["only_b"] if each["backward"]} == {line_of("tape.gradient")}
    assert [each["name"] for each in found["only_a"]] == ["Sum", "Reshape", "Tile"]
    assert found["only_a"][0]["line"] == line_of("reduce_sum")

    found = results["eager"]["operators"]
    assert found["what"] == "operator"
    assert found["number"] > 20  # torch's of the batch, and TensorFlow's in the function
    assert {each["line"] for each in found["only_b"]} == {line_of("assign_add")}
    assert [each["name"] for each in found["only_b"]][-1] == "AssignAddVariableOp"
    assert found["only_a"] == []


#: Prints what a few steps give, and with `log` in LOG the operators of one of them.
LOGGED = """
import os
import tensorflow as tf
from detrain.adapters.protocol import Settings
from detrain.adapters.tensorflow import ADAPTER

ADAPTER.prepare(Settings(0, True, lambda first, second: None, lambda main: None))
weight = tf.Variable(tf.random.stateless_normal([4, 4], [0, 1]))
elements = iter(tf.data.Dataset.range(6).map(lambda number: tf.cast(number, tf.float32)))
drawn = []

@tf.function
def inner(x):
    return tf.linalg.matmul(x, weight)

@tf.function
def step(iterator, x):
    number = next(iterator)
    seen = tf.numpy_function(lambda value: drawn.append(float(value)) or value, [number], tf.float32)
    noise = tf.random.normal([4], seed=5) + tf.random.shuffle(tf.range(4.0), seed=6)
    for _ in tf.range(2):
        weight.assign_add(0.01 * inner(x) * number)
    if number > 1:
        weight.assign_sub(0.1 * tf.linalg.diag(noise))
    tf.debugging.assert_greater(seen, -1.0)
    return tf.reduce_sum(inner(x)) + seen

@tf.function(jit_compile=True)
def compiled(x):
    return tf.reduce_sum(tf.exp(x) * weight)

def once():
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(inner(tf.ones([4, 4]))) * 2.0
    weight.assign_sub(0.1 * tape.gradient(loss, weight))
    return step(elements, tf.ones([4, 4])), compiled(tf.ones([4, 4])), loss

for number in range(5):
    calls = []
    stop = ADAPTER.log_operators(lambda name: name == __file__, calls.append) if os.environ["LOG"] == "1" else None
    print(*(value.numpy().tobytes().hex() for value in (*once(), weight)))
    if stop is not None:
        stop()
print(drawn)
for call in calls:
    print("call", call["name"], call["line"].rpartition(":")[2], call["backward"] or "-", bool(call["inputs"]), len(call["outputs"]))
try:
    step(elements, tf.ones([4, 4])), step(elements, tf.ones([4, 4]))
except tf.errors.OutOfRangeError:
    print("end")
"""


@pytest.mark.full
def test_a_log_changes_nothing_of_what_runs(script) -> None:
    one = script(LOGGED)
    plain = one.plainly(LOG="0").splitlines()
    logged = one.plainly(LOG="1").splitlines()
    assert plain == [line for line in logged if not line.startswith("call ")]
    assert plain[-2:] == ["[0.0, 1.0, 2.0, 3.0, 4.0]", "end"]
    calls = [line.removeprefix("call ").rsplit(maxsplit=4) for line in logged if line.startswith("call ")]
    names = [name for name, *_ in calls]
    assert names.count("IteratorGetNext") == 1
    assert {"StatelessRandomNormalV2", "While", "Exp", "MatMul", "AssignSubVariableOp"} <= set(names)
    # What Python functions and kernels with a generator give is not known in the second run, nor what depends on it.
    assert not {"PyFunc", "EagerPyFunc", "RandomShuffle", "If", "StatelessIf"} & set(names)
    called = [name for name in names if "tf.function" in name]
    assert called == [f"{way}tf.function inner" for way in ("", "backward pass of ")] + [
        "tf.function step",
        "tf.function compiled",
    ]
    (line,) = {line for name, line, *_ in calls if name == "Exp"}
    assert LOGGED.splitlines()[int(line) - 1].strip() == "return tf.reduce_sum(tf.exp(x) * weight)"
    assert [(name, within) for name, _, within, *_ in calls if within not in "-"] == [
        ("Mul", "Mul"), ("Reshape", "Sum"), ("Tile", "Sum"), ("Identity", "grad_ys_0"), ("MatMul", "MatMul_grad"),
        ("MatMul", "MatMul_grad"),
    ]  # fmt: skip
