"""Data sets that shuffle: a resume at the end of a pass, when TensorFlow's iterator no longer tells of its generator of seeds."""

from __future__ import annotations

import re

import pytest

from tests.tiers import full_but

SCRIPT = """
import os
import tensorflow as tf

rows = tf.data.Dataset.range(64)
data = #CHAIN
weight = tf.Variable(0.5)
for epoch in range(4):
    feed = iter(data)
    for batch in range(9):  # the ninth finds nothing
        if batch == 8:
            if epoch == int(os.environ.get("DIE", "9")):
                os.kill(os.getpid(), 9)
            continue
        x = tf.reshape(tf.cast(tf.nest.flatten(next(feed))[-1], tf.float32), [-1])
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((weight - x / 64) ** 2)
        weight.assign_sub(0.1 * tape.gradient(loss, weight))
        print(epoch, batch, x.numpy().tolist(), float(weight), flush=True)
"""

CHAINS = {
    "batches": "rows.shuffle(64).batch(8)",
    "parallel": "rows.shuffle(16, seed=3).map(lambda x: x + 1, num_parallel_calls=2).batch(8).prefetch(2)",
    "two_generators": "tf.data.Dataset.zip((tf.data.Dataset.random(seed=4).take(64), rows.shuffle(64))).batch(8)",
    "the_same_each_time": "rows.shuffle(64, reshuffle_each_iteration=False).batch(8)",
    "twice_at_once": "tf.data.Dataset.zip((rows.shuffle(64),) * 2).map(lambda x, y: x + y).batch(8)",
    "returned_by_a_graph": "tf.function(lambda: rows.shuffle(64).batch(8))()",
    "counted": "rows.shuffle(64).batch(8).prefetch(2).enumerate()",
    "counted_for_ever": "rows.shuffle(64).batch(8).enumerate().repeat()",
    "for_ever": "rows.shuffle(64).repeat().batch(8)",
    "of_python": (
        "tf.data.Dataset.from_generator(lambda: iter(range(64)), output_signature=tf.TensorSpec([], tf.int64))"
        ".shuffle(64).batch(8)"
    ),
}
_SHUFFLED_FILES = (
    "rows.take(4).shuffle(4).interleave(lambda n: tf.data.Dataset.range(16 * n, 16 * n + 16), cycle_length=2)"
)
#: A generator of seeds below another, a cache or a repetition is asked later than the pass begins, or not at all.
LATE = {
    "files": f"{_SHUFFLED_FILES}.shuffle(16).batch(8).prefetch(2)",
    "cached": "rows.shuffle(64).cache().shuffle(64).batch(8).prefetch(2)",
    "files_and_noise": (
        f"{_SHUFFLED_FILES}.shuffle(16).map(lambda x: tf.cast(x, tf.float32) + tf.random.uniform([])).batch(8)"
    ),
    "files_for_ever": f"{_SHUFFLED_FILES}.shuffle(16).repeat().batch(8)",
    "batches_shuffled_again": "rows.shuffle(64).batch(8).shuffle(4)",
}
CHAINS.update(LATE)


@pytest.mark.parametrize("name", full_but(["batches", "parallel"], CHAINS))
def test_after_the_end_of_a_pass_the_next_is_shuffled_as_it_would_have_been(script, name: str) -> None:
    check_rest(script(SCRIPT.replace("#CHAIN", CHAINS[name])), "1batches", num_lines=8)


@pytest.mark.parametrize("name", full_but(["files"], [name for name in LATE if "ever" not in name]))
def test_between_two_passes_no_iterator_is_needed_to_tell_where_generators_are(script, name: str) -> None:
    check_rest(script(SCRIPT.replace("#CHAIN", LATE[name])), "epoch", num_lines=16)


def check_rest(one, every: str, num_lines: int) -> None:
    """Killed at the end of the third pass, it goes on with the last lines of a run that nobody kills."""
    whole = one.attempt("whole")
    one.attempt("run", "--every", every, status=-9, DIE="2")
    rest = one.attempt("run", "--every", every)
    assert len(rest.splitlines()) == num_lines
    assert whole.endswith(rest)


@pytest.mark.parametrize(
    "chain",
    ["rows.take(32).shuffle(32).repeat(2).batch(8)", "rows.take(8).concatenate(rows.take(56).shuffle(56)).batch(8)"],
)
def test_where_nothing_tells_how_often_it_has_been_shuffled_the_resume_is_refused(script, chain: str) -> None:
    one = script(SCRIPT.replace("#CHAIN", chain))
    one.attempt("run", "--every", "1batches", status=-9, DIE="1")
    one.attempt("run", "--every", "1batches", status=2)
    assert "another pass over it may begin at any time, and nothing tells how many have" in one.said


@pytest.mark.parametrize("num_ahead", [1, 3, 20])
def test_how_far_threads_have_read_ahead_does_not_change_how_the_next_pass_is_shuffled(num_ahead: int) -> None:
    tf = pytest.importorskip("tensorflow")
    from detrain.adapters.tensorflow import generators
    from detrain.adapters.tensorflow.read_ahead import STRIDE, Places

    def passes(num_ahead: int) -> list[list[int]]:
        tf.random.set_seed(1)
        rows, places = tf.data.Dataset.range(8).shuffle(8), Places()
        given = []
        for _ in range(3):
            places.begin(rows.repeat())
            start = generators.read(rows)
            given.append([int(x) for x in rows])
            generators.write(rows, start + 2 + 2 * num_ahead)  # a thread has begun so many repetitions
        assert generators.read(rows) // STRIDE == 2
        return given

    assert passes(num_ahead) == passes(0)


TWO_AT_ONCE = """
import tensorflow as tf

data = tf.data.Dataset.range(64).shuffle(64).repeat().batch(8).prefetch(1)
first = iter(data)
weight = tf.Variable(0.5)
for epoch in range(3):
    feed = iter(data)
    for batch in range(8):
        x = next(feed)
        with tf.GradientTape() as tape:
            loss = (weight - tf.reduce_mean(tf.cast(x, tf.float32))) ** 2
        weight.assign_sub(0.01 * tape.gradient(loss, weight))
        next(first)
"""


@pytest.mark.full
def test_two_passes_at_once_of_which_threads_decide_are_warned_of_and_not_saved(script) -> None:
    one = script(TWO_AT_ONCE)
    one.attempt("run", "--every", "1batches")
    assert one.said.count("[two-passes]") == 1
    assert re.search(r"feed .*are in use at once.* \[not-captured\]", one.said)


#: Goes through the data set inside a graph, as a `for` loop there does.
IN_A_GRAPH = """
import os
import tensorflow as tf

data = tf.data.Dataset.range(64).shuffle(64).batch(8)
weight = tf.Variable(0.5)
optimizer = tf.keras.optimizers.SGD(0.1)


@tf.function
def one_pass():
    for x in data:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((weight - tf.cast(x, tf.float32) / 64) ** 2)
        optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])
    return weight + 0.0


for epoch in range(8):
    if epoch == int(os.environ.get("DIE", "9")):
        os.kill(os.getpid(), 9)
    print(epoch, float(one_pass()), data.reduce(tf.constant(0, tf.int64), lambda old, x: 2 * old + x[0]).numpy(), flush=True)
"""


def test_passes_that_a_graph_begins_are_counted(script) -> None:
    one = script(IN_A_GRAPH)
    whole = one.attempt("whole")
    one.attempt("run", "--every", "1batches", status=-9, DIE="5")
    rest = one.attempt("run", "--every", "1batches")
    assert len(rest.splitlines()) == 3
    assert whole.endswith(rest)


#: Gives it to a graph, which goes through it.
GIVEN = """
import os
import tensorflow as tf

rows = tf.data.Dataset.range(64)
data = rows.shuffle(64).batch(8)
other = tf.data.Dataset.random(seed=5).take(16).batch(8)
weight = tf.Variable(0.5)
optimizer = tf.keras.optimizers.Adam(0.1)


def step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((weight - tf.cast(x % 64, tf.float32) / 64) ** 2)
    optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])


#FUNCTION

for epoch in range(8):
    if epoch == int(os.environ.get("DIE", "9")):
        os.kill(os.getpid(), 9)
    one_pass(data)
    print(epoch, float(weight), next(iter(data)).numpy().tolist(), flush=True)
    if epoch % 2:
        one_pass(other)
        print(epoch, float(weight), next(iter(other)).numpy().tolist(), flush=True)
"""

FUNCTIONS = {
    "a_loop": """
@tf.function
def one_pass(given):
    for x in given:
        step(x)
""",
    "an_iterator": """
@tf.function
def one_pass(given):
    feed = iter(given)
    for _ in tf.range(2):
        step(next(feed))
""",
    "made_into_another": """
@tf.function
def one_pass(given):
    for x in given.map(lambda x: x + 1).prefetch(2):
        step(x)
""",
    "several_times": """
@tf.function
def one_pass(given):
    for _ in tf.range(3):
        for x in given:
            step(x)
""",
    "given_on": """
@tf.function
def inner(given, scale):
    for x in given:
        step(x * scale)

@tf.function
def one_pass(given):
    inner(given, tf.constant(1, tf.int64))
    inner(tf.data.Dataset.zip((given, data)).map(lambda x, y: x + y), tf.constant(2, tf.int64))
""",
    "two_at_once": """
@tf.function
def both(given, known, *, last):
    for x, y in tf.data.Dataset.zip((given["one"], known)):
        step(x + y)
    for x in last.take(1):
        step(x)

def one_pass(given):
    both({"one": given}, data, last=other)
    both({"one": other}, given, last=data)
""",
    "within_one_for_each_element": """
@tf.function
def inner(given):
    for x in given:
        step(x)

@tf.function
def one_pass(given):
    for _ in tf.data.Dataset.range(2):
        inner(given)
""",
    "of_pieces": """
@tf.function
def one_pass(given):
    for window in given.unbatch().window(8):
        for x in window.batch(4):
            step(x)
""",
    "gradients": """
@tf.function
def total(given):
    feed = iter(given)
    return tf.reduce_mean(weight * tf.cast(next(feed) % 64, tf.float32) / 64)

def one_pass(given):
    with tf.GradientTape() as tape:
        loss = total(given)
    optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])
""",
}


@pytest.mark.parametrize("name", full_but(list(FUNCTIONS)[:1], FUNCTIONS))
def test_passes_over_what_a_graph_is_given_are_counted(script, name: str) -> None:
    one = script(GIVEN.replace("#FUNCTION", FUNCTIONS[name]))
    whole = one.attempt("whole")
    one.attempt("run", "--every", "1batches", status=-9, DIE="5")
    rest = one.attempt("run", "--every", "1batches")
    assert rest.startswith("5 ")
    assert whole.endswith(rest)


NOT_TOLD = {
    "repeated_in_the_graph": """
@tf.function
def one_pass(given):
    for x in given.repeat(2):
        step(x)
""",
    "repeated_before": """
@tf.function
def inner(given):
    for x in given:
        step(x)

def one_pass(given):
    inner(given.repeat(2))
""",
    "of_one_of_two": """
@tf.function
def one_pass(given):
    chosen = tf.cond(weight > 0, lambda: given, lambda: data)
    for x in chosen:
        step(x)
""",
}


@pytest.mark.parametrize("name", full_but(list(NOT_TOLD)[:1], NOT_TOLD))
def test_where_a_graph_does_not_tell_the_resume_is_refused(script, name: str) -> None:
    one = script(GIVEN.replace("#FUNCTION", NOT_TOLD[name]))
    one.attempt("run", "--every", "1batches", status=-9, DIE="5")
    one.attempt("run", "--every", "1batches", status=2)
    assert "how many passes over its shuffled part" in one.said or "cannot be identified" in one.said


#: Elements that depend on what the loop has changed when they are made. The second word says whether a buffer holds some back.
CHANGING = """
import os
import numpy as np
import tensorflow as tf

level, weight = tf.Variable(1.0), tf.Variable(0.5)


def drawn():
    while True:
        yield np.random.randn()


rows = tf.data.Dataset.range(64)
feed = iter(#CHAIN)
for batch in range(24):
    if batch == int(os.environ.get("DIE", "99")):
        os.kill(os.getpid(), 9)
    x = next(feed)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((weight - x) ** 2) * np.random.rand()
    weight.assign_sub(0.01 * tape.gradient(loss, weight))
    level.assign(1.0 + batch)
    print(batch, x.numpy().tolist(), float(weight), flush=True)
"""
OF_A_VARIABLE = "rows.map(lambda x: tf.cast(x, tf.float32) * level)"
OF_NUMPY = "tf.data.Dataset.from_generator(drawn, output_signature=tf.TensorSpec([], tf.float32))"


@pytest.mark.parametrize(
    "chain", [f"{OF_A_VARIABLE}.shuffle(16).batch(8).repeat()", f"{OF_NUMPY}.shuffle(64).batch(8)"]
)
def test_where_elements_asked_for_again_come_out_otherwise_the_resume_is_refused(script, chain: str) -> None:
    one = script(CHANGING.replace("#CHAIN", chain))
    one.attempt("run", "--every", "1batches", status=-9, DIE="5")
    one.attempt("run", "--every", "1batches", status=1)
    assert re.search(r"script\.feed .*asked again for its elements, its data set has given others", one.errors)
    assert "checkpoint_0_5.h5 has been set aside" in one.errors


def test_where_no_element_is_held_back_it_does_not_matter_what_earlier_ones_were(script) -> None:
    one = script(CHANGING.replace("#CHAIN", f"{OF_A_VARIABLE}.batch(8).repeat()"))
    whole = one.attempt("whole")
    one.attempt("run", "--every", "1batches", status=-9, DIE="11")
    rest = one.attempt("run", "--every", "1batches")
    assert rest.startswith("11 ")
    assert whole.endswith(rest)


STRUCTURES = """
import collections
import keras
import numpy as np
import tensorflow as tf
Pair = collections.namedtuple("Pair", "a b")
def elements(n):
    ragged = tf.RaggedTensor.from_row_lengths(tf.range(3), [1, 2])
    sparse = tf.sparse.from_dense([[0, n]])
    return [
        n, (n,), ((n, n),), (n, (n, n)), [n, n], {"a": n}, ({"a": n},), Pair(n, n), (Pair(n, (n,)),), (n, None), ({"x": (n, None)},),
        ragged, (ragged, sparse),
    ]
def form(value):
    if isinstance(value, dict):
        return {name: form(one) for name, one in value.items()}
    if isinstance(value, tuple):
        return type(value).__name__, [form(one) for one in value]
    return "none" if value is None or type(value).__name__ == "NoneTensorSpec" else "tensor"
for number in range(len(elements(tf.constant(1, tf.int64)))):
    def one(n):  # Python in the data set: its elements are counted
        with tf.control_dependencies([tf.numpy_function(lambda n: n, [n], tf.int64)]):
            return elements(n)[number]
    data = tf.data.Dataset.range(3).map(one)
    assert [form(element) for element in data] == [form(data.element_spec)] * 3, number
a, b = keras.Input((3,), name="a"), keras.Input((2,), name="b")
model = keras.Model([a, b], [keras.layers.Dense(1)(keras.layers.Concatenate()([a, b])), keras.layers.Dense(2)(a)])
model.compile("sgd", ["mse", "mse"])
x, y, t, u = (np.ones((4, size), "float32") for size in (3, 2, 1, 2))
print([part.shape for part in model.predict([x, y], verbose=0)], [part.shape for part in model.predict({"a": x, "b": y}, verbose=0)])
print(len(model.evaluate([x, y], [t, u], verbose=0)), len(model.train_on_batch([x, y], [t, u])))
print(model.fit([x, y], [t, u], epochs=2, verbose=0).history.keys() == model.fit([x, y], [t, u], verbose=0).history.keys())
"""


@pytest.mark.full
def test_elements_of_a_data_set_whose_elements_are_counted_keep_their_structure(script) -> None:
    lines = script(STRUCTURES).anew().splitlines()
    assert lines == ["[(4, 1), (4, 2)] [(4, 1), (4, 2)]", "3 3", "True"]
