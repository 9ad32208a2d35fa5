"""TensorFlow and Keras programs, killed and run again: every bit is an uninterrupted run's."""

import subprocess
import sys

import pytest

from tests.tiers import full_but

from .conftest import as_marked, seed_of
from .harness import Moment, differences, environment, live_at_random
from .programs.tensorflow import PROGRAMS, QUICK
from .test_kills import SOAK_KILLS

#: What `make test` runs of them.
NEWCOMERS = [*[name for name in QUICK if "fit(" not in PROGRAMS[name].script][:2]]


@pytest.fixture
def program(request):
    return as_marked(PROGRAMS[request.param], request)


@pytest.mark.parametrize("program", full_but(NEWCOMERS, QUICK), indirect=True)
def test_program_killed_twice_gives_the_same_bits(program, killed, reference):
    num_batches = len(reference(program).attempts[0].batches)
    life = killed(program, [Moment(batches=num_batches * 2 // 3), Moment(batches=3, is_whole_group=False)])
    assert life.num_kills == 2
    assert len(life.resumes) == 2


@pytest.mark.soak
@pytest.mark.parametrize("program", PROGRAMS, indirect=True)
def test_every_program_survives_kills_at_random_moments(program, killed, reference, note):
    expected = reference(program)
    lives = live_at_random(lambda: killed.new_place(program), expected, SOAK_KILLS, seed_of(program.name))
    problems = [problem for life in lives for problem in differences(expected, life)]
    note(program.name, lives, problems)
    assert not problems, "\n".join(problems)
    assert sum(life.num_kills for life in lives) >= SOAK_KILLS


ONE_FRAMEWORK = {
    "torch": """
import sys, torch
weight = torch.zeros(2, requires_grad=True)
for batch in range(4):
    weight.square().sum().backward()
    torch.optim.SGD([weight], lr=0.1).step()
print(*sorted({"torch", "tensorflow", "keras"} & set(sys.modules)))
""",
    "tensorflow": """
import sys
import tensorflow as tf
weight = tf.Variable([1.0, 2.0])
for batch in range(4):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(weight * weight)
    weight.assign_sub(0.1 * tape.gradient(loss, weight))
print(*sorted({"torch", "tensorflow", "keras"} & set(sys.modules)))
""",
    "keras on torch": """
import os, sys
os.environ["KERAS_BACKEND"] = "torch"
import keras
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
for batch in range(4):
    model.train_on_batch(keras.ops.ones((3, 2)), keras.ops.ones((3, 1)))
print(*sorted({"torch", "tensorflow", "keras"} & set(sys.modules)))
""",
}


@pytest.mark.parametrize("name", full_but(["torch"], ONE_FRAMEWORK))
def test_script_of_one_framework_never_loads_the_other(name, tmp_path):
    (tmp_path / "train.py").write_text(ONE_FRAMEWORK[name])
    words = [sys.executable, "-m", "detrain", "run", "--every", "2batches", "train.py"]
    done = subprocess.run(words, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "training loop found" in done.stderr
    plain = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == plain.stdout
