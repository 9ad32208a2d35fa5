"""Data sets that shuffle: a resume at the end of a pass, when TensorFlow's iterator no longer tells of its generator of seeds."""

from __future__ import annotations

import pytest

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
    "for_ever": "rows.shuffle(64).repeat().batch(8)",
    "of_python": (
        "tf.data.Dataset.from_generator(lambda: iter(range(64)), output_signature=tf.TensorSpec([], tf.int64))"
        ".shuffle(64).batch(8)"
    ),
}


@pytest.mark.parametrize("name", CHAINS)
def test_after_the_end_of_a_pass_the_next_is_shuffled_as_it_would_have_been(script, name: str) -> None:
    one = script(SCRIPT.replace("#CHAIN", CHAINS[name]))
    whole = one.attempt("whole")
    one.attempt("run", "--every", "1batches", status=-9, DIE="2")
    rest = one.attempt("run", "--every", "1batches")
    assert len(rest.splitlines()) == 8
    assert whole.endswith(rest)


@pytest.mark.parametrize(
    "chain",
    ["rows.take(32).shuffle(32).repeat(2).batch(8)", "rows.take(8).concatenate(rows.take(56).shuffle(56)).batch(8)"],
)
def test_where_nothing_tells_how_often_it_has_been_shuffled_the_resume_is_refused(script, chain: str) -> None:
    one = script(SCRIPT.replace("#CHAIN", chain))
    one.attempt("run", "--every", "1batches", status=-9, DIE="1")
    one.attempt("run", "--every", "1batches", status=2)
    assert "it has come to its end, and does not tell any more how often its shuffling has begun" in one.said


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
