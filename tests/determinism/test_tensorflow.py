"""TensorFlow's random numbers: drawn at counters that can be saved, they are what TensorFlow draws by itself, bit for bit."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.tiers import full_but

SCRIPT = """
import tensorflow as tf

tf.random.set_seed(5)
found = [tf.random.normal([3]), tf.random.uniform([3], seed=4), tf.random.uniform([2], seed=4)]
found += [tf.random.uniform([5], 0, 9, tf.int32, seed=4)]
found += [tf.random.truncated_normal([3], seed=1, dtype=tf.float64) for _ in range(2)]
found += [tf.random.normal([4], dtype=tf.float16, seed=2) for _ in range(2)]


@tf.function
def inner(x, count):
    total = tf.constant(0.0)
    for _ in tf.range(count):
        total += tf.reduce_sum(tf.random.normal([2]))
    if tf.reduce_sum(x) > 0:
        total += tf.random.uniform([])
    numbers = tf.cast(tf.random.uniform([4], -3, 3, tf.int64), tf.float32)
    return tf.nn.dropout(x, 0.4) + tf.random.uniform([4], seed=9) + total + numbers


@tf.function
def outer(x):
    return inner(x, tf.constant(1)) + inner(x, tf.constant(2)) + tf.random.uniform([4])


for _ in range(3):
    found += [inner(tf.ones([4]), tf.constant(2)), outer(tf.ones([4]))]
found.append(inner(tf.ones([2, 4]), tf.constant(2)))
found += list(tf.data.Dataset.range(4).map(lambda i: tf.random.uniform([], seed=3)).shuffle(3))
weight = tf.Variable(tf.ones([4]))
for _ in range(3):
    with tf.GradientTape() as tape:
        recorded = inner(weight, tf.constant(1))
    found += [recorded, inner(weight, tf.constant(1)), tape.gradient(recorded, weight)]
tf.random.set_seed(5)
found += [tf.random.uniform([3], seed=4), inner(tf.ones([4]), tf.constant(2))]
for one in found:
    print(one.numpy().tobytes().hex())
"""

FROM_KERNELS = """
import tensorflow as tf

tf.random.set_seed(5)
found = [tf.random.shuffle(tf.range(size), seed=4) for size in (9, 7)]
found += [tf.random.gamma([3, 2], [0.5, 2.0], seed=3) for _ in range(2)]
found += [tf.random.categorical(tf.zeros([2, 9]), 5, seed=4) for _ in range(2)]
found += [tf.random.poisson([3], [2.0, 50.0], seed=4) for _ in range(2)]
labels = tf.constant([[1, 2], [3, 4]], tf.int64)


@tf.function
def inner(x):
    order = tf.random.shuffle(x)
    classes = tf.random.categorical(tf.zeros([tf.shape(x)[0], 5]), 3)
    rates = tf.random.gamma([2], tf.ones([2, 3]))
    counts = tf.random.poisson([2], 3.0)
    candidates, expected, sampled = tf.random.log_uniform_candidate_sampler(labels, 2, 4, True, 50)
    return [tf.cast(one, tf.float32) for one in (order, classes, rates, counts, candidates, expected, sampled)]


@tf.function
def outer(x):
    total = tf.constant(0)
    for _ in tf.range(2):
        total += tf.random.shuffle(tf.range(10))[0]
    return [*inner(x), *inner(x), tf.random.shuffle(tf.range(5)), total]


for n in (3, 5, 1, 6):
    found += [*inner(tf.range(n)), *outer(tf.range(n))]
weight = tf.Variable([0.5, 1.5])
for _ in range(2):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(inner(tf.range(4))[2]) * tf.reduce_sum(weight)
        loss += tf.reduce_sum(tf.random.gamma([2], weight, seed=2))
    found += [loss, tape.gradient(loss, weight)]


@tf.function
def grad():
    with tf.GradientTape() as tape:
        candidates, expected, sampled = tf.random.log_uniform_candidate_sampler(labels, 2, 4, True, 50)
        loss = tf.reduce_sum(tf.random.gamma([], weight)) * tf.reduce_sum(tf.math.log(sampled))
        loss += tf.reduce_sum(weight) * tf.reduce_sum(tf.random.poisson([2], 3.0))
    return loss, tape.gradient(loss, weight)


for _ in range(2):
    found += grad()
found += [tf.random.shuffle(tf.range(9), seed=4)]
tf.random.set_seed(5)
found += [tf.random.shuffle(tf.range(9), seed=4)]
found += inner(tf.range(4))
for one in found:
    print(one.numpy().tobytes().hex())
"""


@pytest.mark.parametrize(
    "text", [SCRIPT, pytest.param(FROM_KERNELS, marks=pytest.mark.full)], ids=["stateless", "from-kernels"]
)
@pytest.mark.parametrize("how", full_but([], ["plain", "deterministic"]))
def test_random_numbers_are_those_of_plain_tensorflow(script, text: str, how: str) -> None:
    # What is reckoned with them must not be reckoned in another order.
    switch = 'tf.config.optimizer.set_experimental_options({"arithmetic_optimization": False})'
    one = script(text.replace("import tensorflow as tf\n", f"import tensorflow as tf\n{switch}\n", 1))
    plain = subprocess.run([sys.executable, str(one.path)], capture_output=True, text=True, check=True).stdout
    words = [] if how == "deterministic" else ["--nondeterministic"]
    assert len(plain.splitlines()) > 25
    assert one.attempt("run", *words) == plain


UNREADABLE = """
import os
import tensorflow as tf

weight = tf.Variable([1.0, 2.0])


#DECORATOR
def step():
    with tf.GradientTape() as tape:
        _, _, sampled = tf.random.learned_unigram_candidate_sampler([[1]], 1, 2, True, 10)
        loss = tf.reduce_sum(weight * weight * sampled)
    weight.assign_sub(0.1 * tape.gradient(loss, weight))
    return loss


for batch in range(20):
    print(float(step()), flush=True)
    if batch == 9 and os.environ.get("DIE"):
        os.kill(os.getpid(), 9)
"""


def test_generator_that_cannot_be_read_is_named_and_the_resume_refused(script) -> None:
    one = script(UNREADABLE.replace("#DECORATOR", "@tf.function"))
    one.attempt("run", "--every", "2batches", status=-9, DIE="1")
    assert "learned_unigram_candidate_sampler: the generator is in TensorFlow's kernel" in one.said
    one.attempt("run", "--every", "2batches", status=2)
    assert "these are not in the checkpoint: generators.tensorflow.kernels" in one.said


def test_where_each_operation_is_run_by_itself_there_is_nothing_to_read(script) -> None:
    one = script(UNREADABLE)
    whole = one.attempt("whole")
    one.attempt("run", "--every", "2batches", status=-9, DIE="1")
    rest = one.attempt("run", "--every", "2batches")
    assert 10 <= len(rest.splitlines()) < 20
    assert whole.endswith(rest)


WIDENED = """
import os
import tensorflow as tf

weight = tf.Variable([1.0, 2.0])


@tf.function(reduce_retracing=True)
def step(x):
    weight.assign_sub(0.1 * tf.reduce_mean(x) * tf.random.uniform([2]))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(weight * weight)
    weight.assign_sub(0.01 * tape.gradient(loss, weight))
    return loss


for epoch in range(3):
    for batch in range(4):
        if (epoch, batch) == (1, int(os.environ.get("DIE", "9"))):
            os.kill(os.getpid(), 9)
        print(epoch, batch, float(step(tf.ones([4 if batch < 3 else 2]))), flush=True)
"""


@pytest.mark.parametrize("batch", [2, 3])
def test_traces_that_depend_on_their_order_are_found_or_said(script, batch: int) -> None:
    one = script(WIDENED)
    whole = one.attempt("whole")
    one.attempt("run", "--every", "1batches", status=-9, DIE=str(batch))
    if batch == 3:  # the first that is traced has two rows, where the killed attempt had widened the shape
        one.attempt("run", "--every", "1batches", status=1)
        assert "(x=TensorSpec(shape=(2,), dtype=tf.float32, name=None)) is traced before what the killed" in one.errors
        assert "checkpoint_1_3.h5 has been set aside" in one.errors
    rest = one.attempt("run", "--every", "1batches")
    assert 6 <= len(rest.splitlines()) <= 7
    assert whole.endswith(rest)


FITTED_WITH_TIMES = """
import time
import keras
import numpy as np
keras.utils.set_random_seed(1)
x = np.random.rand(128, 10).astype("float32")
model = keras.Sequential([keras.layers.Dense(8, activation="relu"), keras.layers.Dropout(0.2), keras.layers.Dense(1)])
model.compile("adam", "mse")

class Times(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.all = []

    def on_epoch_begin(self, epoch, logs=None):
        self.began = time.time()

    def on_train_batch_end(self, batch, logs=None):
        self.all.append(time.perf_counter() - self.began)

print(model.fit(x, x.sum(1), batch_size=16, epochs=3, callbacks=[Times()], validation_split=0.25, verbose=2).history)
"""


@pytest.mark.full
@pytest.mark.usefixtures("sandbox")
def test_a_fit_whose_model_is_built_by_its_first_batch_and_that_keeps_times_is_proved(script) -> None:
    """Keras' own objects keep times; layers, variables and their lambdas come about in the loop; threads of TensorFlow's draw entropy."""
    one = script(FITTED_WITH_TIMES)
    one.attempt("run", "--every", "4batches")
    found = json.loads(one.command("verify", "run", "--json"))
    assert [row["result"] for row in found["segments"]] == ["same"] * len(found["segments"])
    assert len(found["segments"]) > 2


#: Functions that keep what they found in Python when they were traced.
KEEPING = {
    "graph_step": """
import os
import tensorflow as tf

class Layer(tf.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.scale = tf.Variable(0.5), 1.0

layer = Layer()

@tf.function
def step(x):
    with tf.GradientTape() as tape:
        loss = (layer.weight * layer.scale - x) ** 2
    layer.weight.assign_sub(0.1 * tape.gradient(loss, layer.weight))
    return loss

#WARM
for batch in range(40):
    if batch == int(os.environ.get("DIE", "99")):
        os.kill(os.getpid(), 9)
    print(batch, float(step(tf.constant(float(batch)))), flush=True)
    #CHANGE layer.scale += 1.0
""",
    "fit": """
import os
import keras
import numpy as np

class Layer(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.scale = 1.0

    def call(self, x):
        return x * self.scale

class Told(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        print(batch, logs["loss"], flush=True)
        #CHANGE self.model.layers[1].scale += 1.0
        if batch == int(os.environ.get("DIE", "99")):
            os.kill(os.getpid(), 9)

keras.utils.set_random_seed(1)
x = np.random.rand(320, 4).astype("float32")
model = keras.Sequential([keras.layers.Dense(1), Layer()])
model.compile("sgd", "mse")
model.fit(x, x.sum(1), batch_size=8, shuffle=False, verbose=0, callbacks=[Told()])
""",
}


@pytest.mark.parametrize("name", full_but(list(KEEPING)[:1], KEEPING))
def test_what_a_function_was_traced_to_it_must_be_traced_to_again(script, name: str) -> None:
    one = script(KEEPING[name].replace("#CHANGE ", ""))
    one.attempt("run", "--every", "1batches", status=-9, DIE="25")
    one.attempt("run", "--every", "1batches", status=1)
    assert "has been traced to another graph than before the kill" in one.errors


@pytest.mark.parametrize("name", full_but(list(KEEPING)[:1], KEEPING))
def test_what_stays_as_it_was_is_traced_to_the_same(script, name: str) -> None:
    one = script(KEEPING[name])
    whole = one.attempt("whole")
    one.attempt("run", "--every", "1batches", status=-9, DIE="25")
    rest = one.attempt("run", "--every", "1batches")
    assert rest
    assert whole.endswith(rest)


def test_what_is_traced_before_the_loop_may_change_in_it(script) -> None:
    one = script(KEEPING["graph_step"].replace("#CHANGE ", "").replace("#WARM", "step(tf.constant(0.0))"))
    whole = one.attempt("whole")
    one.attempt("run", "--every", "1batches", status=-9, DIE="25")
    rest = one.attempt("run", "--every", "1batches")
    assert rest
    assert whole.endswith(rest)


def test_keras_on_a_backend_that_nobody_watches_is_said_at_once(monkeypatch, capfd) -> None:
    import keras

    from detrain.adapters.keras import ADAPTER

    ADAPTER.prepare(None)
    assert "backend-not-watched" not in capfd.readouterr().err
    monkeypatch.setattr(keras.config, "backend", lambda: "jax")
    ADAPTER.prepare(None)
    assert "Keras runs on jax" in capfd.readouterr().err


#: A sum of three in a graph, of tensors that something else reads as well: TensorFlow's kernel begins with the one that is free.
SUMS = """
import hashlib
import tensorflow as tf

parts = [tf.Variable(tf.random.stateless_normal([400, 400], [0, number])) for number in range(3)]
seen = tf.Variable(0.0)

@tf.function
def step(how):
    a, b, c = [tf.linalg.matmul(one, one) for one in parts]
    if how == "tape":
        with tf.GradientTape() as tape:
            tape.watch(a)
            value = tf.reduce_sum(a * a) + tf.reduce_sum(a * b) + tf.reduce_sum(a * c)
        total = tape.gradient(value, a)
    else:
        total = tf.add_n([a, b, c]) if how == "add_n" else a + b + c
    seen.assign_add(tf.reduce_sum(a) + tf.reduce_max(tf.sort(b)))
    return total

for how in ("add_n", "plus", "tape"):
    print(how, len({hashlib.sha1(step(how).numpy().tobytes()).hexdigest() for _ in range(40)}))
    graph = step.get_concrete_function(how).graph
    print(max([len(one.inputs) for one in graph.get_operations() if one.type == "AddN"], default=0) <= 2)
print(tf.config.optimizer.get_experimental_options()["arithmetic_optimization"])
"""


@pytest.mark.full
def test_sums_of_three_do_not_depend_on_which_thread_is_first(script) -> None:
    printed = script(SUMS).anew()
    assert printed.splitlines() == ["add_n 1", "True", "plus 1", "True", "tape 1", "True", "False"]


#: Variables that a function makes, of numbers drawn in it; and a SavedModel of it.
MADE_INSIDE = """
import os
import tensorflow as tf

os.environ["PLAIN"] == "1" and tf.config.experimental.enable_op_determinism()
tf.random.set_seed(2)

class Layer(tf.Module):
    def __init__(self):
        super().__init__()
        self.weight = None

    @tf.function
    def __call__(self, x):
        if self.weight is None:
            self.weight = tf.Variable(tf.random.normal([6, 3]) * 0.1 + tf.random.uniform([3]))
        return x @ self.weight + tf.random.normal([3])

layer, slots = Layer(), []

@tf.function
def step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(x))
    gradient = tape.gradient(loss, layer.weight)
    if not slots:
        slots.append(tf.Variable(tf.random.normal([6, 3])))
    slots[0].assign(0.9 * slots[0] + gradient)
    layer.weight.assign_sub(0.1 * slots[0])
    return loss

for _ in range(4):
    print(step(tf.ones([2, 6])).numpy().tobytes().hex())
tf.saved_model.save(layer, os.environ["SAVED"], signatures=layer.__call__.get_concrete_function(tf.TensorSpec([2, 6])))
again = tf.saved_model.load(os.environ["SAVED"])
print(*(again(tf.ones([2, 6])).numpy().tobytes().hex() for _ in range(3)))
"""


@pytest.mark.full
def test_variables_made_in_a_function_of_numbers_drawn_there_are_those_of_plain_tensorflow(script, tmp_path) -> None:
    one = script(MADE_INSIDE)
    under = one.anew(PLAIN="0", SAVED=str(tmp_path / "under"))
    assert "not-captured" not in one.said
    assert under == one.plainly(PLAIN="1", SAVED=str(tmp_path / "plain"))
    assert len(under.splitlines()) == 5


NO_SEED = """
import tensorflow as tf

with tf.Graph().as_default():  # has a seed of its own, and none at first
    drawn = tf.random.normal((2,))
    with tf.compat.v1.Session() as session:
        print(session.run(drawn).tolist())
tf.random.set_seed(None)
print(tf.random.normal((2,)).numpy().tolist(), tf.random.shuffle(tf.range(4)).numpy().tolist())
"""


def test_where_tensorflow_has_no_seed_it_is_given_one(script) -> None:
    one = script(NO_SEED)
    said = one.attempt("run")
    assert len(said.splitlines()) == 2
    assert one.attempt("run", "--fresh") == said
