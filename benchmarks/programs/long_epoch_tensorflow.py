"""`python long_epoch_tensorflow.py BATCHES KIND`: one epoch of a `tf.data` data set, shuffled and mapped.

KIND `plain`: a data set without random operations in its functions; `drawing`: one whose `map` draws. Says when the body
of every 200th batch begins. With PAUSE_AT=N in the environment it waits in that batch to be killed.
"""

import os
import sys
import time

import tensorflow as tf

BATCH_SIZE = 4

num_batches, kind = int(sys.argv[1]), sys.argv[2]
tf.random.set_seed(1)
weight = tf.Variable(tf.zeros([8, 1]))


def item(number):
    """(8,) float32."""
    values = tf.repeat(tf.cast(number % 11, tf.float32), 8)
    return values + tf.random.normal([8]) if kind == "drawing" else values


@tf.function
def step(batch):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((batch @ weight - 1) ** 2)
    weight.assign_sub(1e-4 * tape.gradient(loss, weight))


dataset = tf.data.Dataset.range(BATCH_SIZE * num_batches).shuffle(1000).map(item).batch(BATCH_SIZE, drop_remainder=True)
for _epoch in range(1):
    for number, batch in enumerate(dataset):
        if number % 200 == 0:
            print(number, flush=True)
            if os.environ.get("PAUSE_AT") == str(number):
                time.sleep(600)
        step(batch)
