"""`python graph_step.py KIND EPOCHS`: a small network in TensorFlow; prints the seconds of each epoch, and how often its step was traced.

KIND `function`: a loop of its own around a `tf.function`; `fit`: Keras' loops.
"""

import json
import sys
import time

import keras
import numpy as np
import tensorflow as tf

kind, num_epochs = sys.argv[1], int(sys.argv[2])
tf.random.set_seed(1)
x = np.random.RandomState(2).randn(6400, 64).astype("float32")
y = (x.sum(1) > 0).astype("float32")[:, None]
layers = [
    keras.layers.Dense(256, activation="relu"),
    keras.layers.Dropout(0.2),
    keras.layers.Dense(256, activation="relu"),
]
model = keras.Sequential([*layers, keras.layers.Dense(1)])
loss_of = keras.losses.BinaryCrossentropy(from_logits=True)
optimizer = keras.optimizers.Adam()
dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(1000).batch(64).prefetch(2)
epochs_s = []
traces = 0


@tf.function
def step(inputs, labels):
    global traces
    traces += 1  # while it is traced; in the graph there is nothing of it
    with tf.GradientTape() as tape:
        loss = loss_of(labels, model(inputs, training=True))
    optimizer.apply_gradients(
        zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
    )
    return loss


class Clock(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.began_s = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        epochs_s.append(time.perf_counter() - self.began_s)


class Counted(keras.layers.Layer):
    """Passes on what it gets, and counts how often that is traced."""

    def call(self, inputs):
        global traces
        traces += 1
        return inputs


if kind == "fit":
    model = keras.Sequential([Counted(), *model.layers])
    model.compile(optimizer, loss_of)
    model.fit(dataset, epochs=num_epochs, verbose=0, callbacks=[Clock()])
else:
    for _epoch in range(num_epochs):
        began_s = time.perf_counter()
        for inputs, labels in dataset:
            loss = step(inputs, labels)
        float(loss)
        epochs_s.append(time.perf_counter() - began_s)
print(json.dumps({"epochs_s": epochs_s, "traces": traces}))
