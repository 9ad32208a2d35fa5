"""A transformer decoder whose attention knows how far apart two events are (Huang et al., Music Transformer, 2018)."""

import keras
import tensorflow as tf


class RelativeAttention(keras.layers.Layer):
    """Causal self-attention with one learned embedding for each distance, added to the scores by skewing."""

    def __init__(self, width, num_heads, length, **kwargs):
        super().__init__(**kwargs)
        self.width, self.num_heads, self.length = width, num_heads, length
        self.query, self.key, self.value, self.out = (keras.layers.Dense(width, use_bias=False) for _ in range(4))

    def build(self, shape):
        self.distances = self.add_weight(
            name="distances",
            shape=(self.num_heads, self.length, self.width // self.num_heads),
            initializer="glorot_uniform",
        )
        for layer in (self.query, self.key, self.value):
            layer.build(shape)
        self.out.build((*shape[:-1], self.width))

    def call(self, x):
        query, key, value = (self._split(layer(x)) for layer in (self.query, self.key, self.value))
        scores = tf.matmul(query, key, transpose_b=True) + self._skew(
            tf.einsum("bhld,hmd->bhlm", query, self.distances)
        )
        scores *= (self.width // self.num_heads) ** -0.5
        mask = 1.0 - tf.linalg.band_part(tf.ones((self.length, self.length)), -1, 0)
        mixed = tf.matmul(tf.nn.softmax(scores - 1e9 * mask), value)
        return self.out(tf.reshape(tf.transpose(mixed, (0, 2, 1, 3)), (-1, self.length, self.width)))

    def _split(self, x):
        return tf.transpose(
            tf.reshape(x, (-1, self.length, self.num_heads, self.width // self.num_heads)), (0, 2, 1, 3)
        )

    def _skew(self, scores):
        padded = tf.pad(scores, ((0, 0), (0, 0), (0, 0), (1, 0)))
        rows = tf.reshape(padded, (-1, self.num_heads, self.length + 1, self.length))
        return rows[:, :, 1:]

    def get_config(self):
        return {**super().get_config(), "width": self.width, "num_heads": self.num_heads, "length": self.length}


def music_transformer(num_events, length, width=64, num_heads=4, num_layers=2, rate=0.1):
    inputs = keras.Input((length,), dtype="int32")
    x = keras.layers.Embedding(num_events + 1, width)(inputs)
    for _ in range(num_layers):
        attended = RelativeAttention(width, num_heads, length)(keras.layers.LayerNormalization()(x))
        x = x + keras.layers.Dropout(rate)(attended)
        hidden = keras.layers.Dense(4 * width, activation="gelu")(keras.layers.LayerNormalization()(x))
        x = x + keras.layers.Dropout(rate)(keras.layers.Dense(width)(hidden))
    return keras.Model(inputs, keras.layers.Dense(num_events)(keras.layers.LayerNormalization()(x)))


class WarmUp(keras.optimizers.schedules.LearningRateSchedule):
    """Linear for some steps, then falling with the square root of the step."""

    def __init__(self, peak, steps):
        self.peak, self.steps = peak, steps

    def __call__(self, step):
        step = tf.cast(step, tf.float32) + 1.0
        return self.peak * tf.minimum(step / self.steps, tf.math.rsqrt(step / self.steps))

    def get_config(self):
        return {"peak": self.peak, "steps": self.steps}
