"""TensorFlow and Keras: their own loops, data sets, graphs, and `fit`. Each ends by writing fingerprints of what it has trained."""

from . import Program
from .tensorflow_holders import HOLDERS
from .tensorflow_sources import SOURCES

PRELUDE = """\
import hashlib, os, random, time
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import numpy as np
import tensorflow as tf
import keras

random.seed(1)
np.random.seed(2)
tf.random.set_seed(3)
X = np.random.RandomState(0).randn(64, 6).astype("float32")
Y = (X.sum(1) > 0).astype("float32")


def log(epoch, batch, value):
    print(f"batch {epoch} {batch} {value!r}", flush=True)
    time.sleep(0.004)


def network(rate=0.3):
    layers = [keras.layers.Dense(8, activation="relu"), keras.layers.BatchNormalization(), keras.layers.Dropout(rate)]
    return keras.Sequential([*layers, keras.layers.Dense(1)])


def loss_of(model, x, y):
    scores = tf.cast(model(x, training=True), tf.float32)
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=y[:, None], logits=scores))


class Log(keras.callbacks.Callback):
    seen = 0

    def on_train_batch_end(self, batch, logs=None):
        self.seen += 1
        log(self.seen, batch, float(logs["loss"]))


def save(**parts):
    parts.update(python=random.getstate(), numpy=np.random.get_state(), tensorflow=tf.random.normal([3], seed=5))
    parts.update(eager=tf.random.normal([3]))
    with open("result.txt", "w") as file:
        for name, value in parts.items():
            if hasattr(value, "variables"):
                value = [one.numpy() for one in value.variables]
            if isinstance(value, tf.Tensor):
                value = value.numpy()
            text = "".join(one.tobytes().hex() if hasattr(one, "tobytes") else repr(one) for one in np.atleast_1d(value)) \\
                if isinstance(value, np.ndarray) else repr([one.tobytes().hex() if hasattr(one, "tobytes") else one for one in value]) \\
                if isinstance(value, (list, tuple)) else repr(value)
            file.write(f"{name} {hashlib.sha1(text.encode()).hexdigest()}\\n")


"""

_BODIES = {
    "checkpoints_of_its_own": """\
model, optimizer = network(), keras.optimizers.Adam(0.01)
model.build((None, 6))
checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
if tf.io.gfile.exists("out"):
    raise SystemExit("out exists")
tf.io.gfile.makedirs("out/weights")
written = []
for epoch in range(3):
    for batch in range(8):
        with tf.GradientTape() as tape:
            loss = loss_of(model, X[batch * 8 : batch * 8 + 8], Y[batch * 8 : batch * 8 + 8])
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        log(epoch, batch, float(loss))
        if batch % 3 == 2:
            written.append(checkpoint.write(f"out/step-{optimizer.iterations.numpy()}"))
            if len(written) > 2:
                for path in tf.io.gfile.glob(written.pop(0) + ".*"):
                    tf.io.gfile.remove(path)
    model.save_weights("out/weights/new.weights.h5")
    tf.io.gfile.rename("out/weights/new.weights.h5", "out/weights/last.weights.h5", overwrite=True)
    with tf.io.gfile.GFile("out/log.txt", "a") as file:
        file.write(f"{epoch} {float(loss)!r}\\n")
save(model=model, optimizer=optimizer, written=written)
""",
    "graph_step_by_hand": """\
w = tf.Variable(tf.random.normal([6, 8]))
v = tf.Variable(tf.random.normal([8, 1]))


@tf.function
def hidden(x):
    return tf.nn.dropout(tf.nn.relu(x @ w), 0.2) + 0.01 * tf.random.normal([8], seed=9)


@tf.function
def step(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=y[:, None], logits=hidden(x) @ v))
    for variable, gradient in zip([w, v], tape.gradient(loss, [w, v])):
        variable.assign_sub(0.1 * gradient)
    return loss


for epoch in range(3):
    order = np.random.permutation(64)
    for batch in range(8):
        chosen = order[8 * batch : 8 * batch + 8]
        log(epoch, batch, float(step(tf.constant(X[chosen]), tf.constant(Y[chosen]))))
    print("evaluated", float(tf.reduce_mean(hidden(X) @ v)), flush=True)
save(w=w.numpy(), v=v.numpy())
""",
    "graph_step_that_gives_nothing": """\
w = tf.Variable(tf.random.normal([6, 1]))


@tf.function
def step(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((x @ w - y[:, None]) ** 2)
    w.assign_sub(0.1 * tape.gradient(loss, w))


for epoch in range(3):
    for batch, (x, y) in enumerate(tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(64).batch(8)):
        step(x, y)
        log(epoch, batch, float(tf.reduce_sum(w)))
save(w=w.numpy())
""",
    "eager_tape": """\
model = network()
optimizer = keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, 24), momentum=0.9)
generator = tf.random.Generator.from_seed(7)
mean = keras.metrics.Mean()
smoothed = None
for epoch in range(3):
    for batch, (x, y) in enumerate(tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(64, seed=epoch).batch(8)):
        x = x + 0.1 * generator.normal(x.shape)
        with tf.GradientTape() as tape:
            loss = loss_of(model, x, y)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        mean.update_state(loss)
        weights = [one.numpy() for one in model.trainable_variables]
        smoothed = weights if smoothed is None else [0.9 * a + 0.1 * b for a, b in zip(smoothed, weights)]
        log(epoch, batch, float(loss))
    print("mean", float(mean.result()), flush=True)
save(model=model, optimizer=optimizer, generator=generator.state.numpy(), smoothed=smoothed, mean=mean)
""",
    "data_set_shuffled_and_mapped": """\
model = network()
optimizer = keras.optimizers.Adam(0.01)
data = tf.data.Dataset.from_tensor_slices((X, Y)).cache().shuffle(40)
data = data.map(lambda x, y: (x * 2 - 1, y), num_parallel_calls=tf.data.AUTOTUNE).batch(8).prefetch(2)
history = []


@tf.function
def step(x, y):
    with tf.GradientTape() as tape:
        loss = loss_of(model, x, y)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss


for epoch in range(4):
    for batch, (x, y) in data.enumerate():
        loss = step(x, y)
        log(epoch, int(batch), float(loss))
    history.append(float(loss))
save(model=model, optimizer=optimizer, history=history)
""",
    "data_set_that_draws": """\
model = network()
optimizer = keras.optimizers.Adam(0.01)
data = tf.data.Dataset.from_tensor_slices((X, Y)).map(lambda x, y: (x + 0.1 * tf.random.normal([6]), y))
iterator = iter(data.shuffle(64).batch(8).repeat())


@tf.function
def step(iterator):
    x, y = next(iterator)
    with tf.GradientTape() as tape:
        loss = loss_of(model, x, y)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss


for number in range(30):
    log(0, number, float(step(iterator)))
save(model=model, optimizer=optimizer)
""",
    "data_set_from_a_generator": """\
def rows():
    for number in range(64):
        yield X[number] + np.float32(0.1) * np.float32(number % 3), Y[number]


signature = (tf.TensorSpec([6], tf.float32), tf.TensorSpec([], tf.float32))
data = tf.data.Dataset.from_generator(rows, output_signature=signature).batch(8)
model = network()
optimizer = keras.optimizers.RMSprop(0.01)
for epoch in range(3):
    for batch, (x, y) in enumerate(data):
        with tf.GradientTape() as tape:
            loss = loss_of(model, x, y)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        log(epoch, batch, float(loss))
save(model=model, optimizer=optimizer)
""",
    "draws_from_kernels": """\
weight = tf.Variable(tf.random.normal([20, 6], seed=1))
bias = tf.Variable(tf.zeros([20]))


@tf.function
def step(x, y):
    order = tf.random.shuffle(tf.range(tf.shape(x)[0]))
    share = tf.random.gamma([tf.shape(x)[0], 1], 0.4) + tf.random.uniform([])
    mixed = share * x + tf.gather(x, order)
    labels = tf.random.categorical(tf.stack([y, -y], 1), 1) + tf.cast(tf.random.poisson([1, 1], 3.0), tf.int64)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.nn.nce_loss(weight, bias, labels, mixed, num_sampled=4, num_classes=20))
    for one, gradient in zip((weight, bias), tape.gradient(loss, (weight, bias))):
        one.assign_sub(0.01 * tf.convert_to_tensor(gradient))
    return loss


for epoch in range(3):
    start = 0
    while start < 64:
        size = 3 + int(tf.random.shuffle(tf.range(6), seed=epoch)[0])
        loss = step(X[start : start + size], Y[start : start + size])
        start += size
        log(epoch, start, float(loss))
    print(f"epoch {epoch} {tf.random.categorical([[0.0, 0.1, 0.2]], 4, seed=1).numpy()}")
save(weight=weight.numpy(), bias=bias.numpy())
""",
    "methods_that_make_variables": """\
class Part(tf.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.bias = tf.Variable(tf.ones([6])), None

    @tf.function
    def step(self, x):
        if self.bias is None:
            self.bias = tf.Variable(tf.zeros([6]))
        with tf.GradientTape() as tape:
            y = self.weight * x + self.bias
            for _ in tf.range(2):
                y += tf.random.normal([6])
            y = tf.cond(tf.reduce_sum(x) > 0, lambda: y + tf.random.uniform([6]), lambda: y - tf.random.uniform([6]))
            loss = tf.reduce_sum(tf.nn.dropout(y, 0.3) ** 2)
        for one, gradient in zip((self.weight, self.bias), tape.gradient(loss, (self.weight, self.bias))):
            one.assign_sub(0.01 * gradient)
        return loss


@tf.function
def augment(x, training):
    return x + tf.random.normal([6]) if training else x + tf.random.uniform([6])


parts = [Part() for _ in range(3)]
for part in parts:
    for epoch in range(2):
        for batch in range(6):
            loss = part.step(augment(X[epoch * 6 + batch], True))
            log(epoch, batch, float(loss))
        print(f"epoch {epoch} {augment(tf.zeros([6]), False).numpy()}")
save(**{f"weight{number}": part.weight.numpy() for number, part in enumerate(parts)})
""",
    "train_on_batch": """\
class Data:
    def __init__(self):
        self.rng = random.Random(5)

    def batch(self, size):
        chosen = [self.rng.randrange(64) for _ in range(size)]
        if chosen[0] == 0:
            raise ValueError("begins badly")
        return X[chosen], Y[chosen]


data = Data()
model = network()
model.compile(keras.optimizers.Adam(0.01), keras.losses.BinaryCrossentropy(from_logits=True), metrics=["accuracy"])
for epoch in range(3):
    for batch in range(10):
        try:
            x, y = data.batch(8)
        except ValueError:
            continue
        loss, accuracy = model.train_on_batch(x, y)
        log(epoch, batch, float(loss))
        if batch % 5 == 4:
            print("evaluated", *map(float, model.evaluate(X, Y, verbose=0)), flush=True)
    model.reset_metrics()
save(model=model, optimizer=model.optimizer, data=data.rng.getstate())
""",
    "fit_arrays": """\
model = network()
model.compile(keras.optimizers.Adam(0.01), keras.losses.BinaryCrossentropy(from_logits=True), metrics=["accuracy"])
told = Log()
stop = keras.callbacks.EarlyStopping(patience=2, restore_best_weights=True)
slower = keras.callbacks.ReduceLROnPlateau(patience=1)
history = model.fit(
    X, Y, batch_size=8, epochs=4, validation_split=0.25, verbose=0, callbacks=[told, stop, slower], class_weight={0: 1.0, 1: 2.0}
)
print(history.history)
save(model=model, optimizer=model.optimizer, seen=told.seen)
""",
    "fit_data_set": """\
data = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(64).batch(8).repeat()
checked = tf.data.Dataset.from_tensor_slices((X, Y)).batch(16)
model = network()
model.compile(keras.optimizers.SGD(0.05, momentum=0.9), keras.losses.BinaryCrossentropy(from_logits=True))
told = Log()
history = model.fit(data, steps_per_epoch=7, epochs=4, validation_data=checked, verbose=0, callbacks=[told])
print(history.history)
save(model=model, optimizer=model.optimizer, seen=told.seen)
""",
    "fit_py_data_set_and_own_step": """\
class Rows(keras.utils.PyDataset):
    def __init__(self):
        super().__init__()
        self.order = np.arange(64)

    def __len__(self):
        return 8

    def __getitem__(self, number):
        chosen = self.order[8 * number : 8 * number + 8]
        return X[chosen], Y[chosen]

    def on_epoch_end(self):
        np.random.shuffle(self.order)


class Mine(keras.Model):
    def __init__(self):
        super().__init__()
        self.inner = network()
        self.mean = keras.metrics.Mean(name="loss")
        self.steps = 0

    def call(self, x, training=False):
        return self.inner(x, training=training)

    @property
    def metrics(self):
        return [self.mean]

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = loss_of(self, x + 0.1 * tf.random.normal([6]), y)
        self.optimizer.apply_gradients(zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables))
        self.mean.update_state(loss)
        return {"loss": self.mean.result()}


model = Mine()
model.compile(keras.optimizers.Adam(0.01))
told = Log()
rows = Rows()
model.fit(rows, epochs=4, verbose=0, callbacks=[told])
save(model=model, optimizer=model.optimizer, seen=told.seen, order=rows.order)
""",
    "mixed_precision_with_loss_scale": """\
keras.mixed_precision.set_global_policy("mixed_float16")
model = network()
optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01), dynamic_growth_steps=5)
smoothed = tf.train.ExponentialMovingAverage(0.9) if hasattr(tf.train, "ExponentialMovingAverage") else None
model(X[:8])
for epoch in range(3):
    for batch in range(8):
        x, y = X[8 * batch : 8 * batch + 8], Y[8 * batch : 8 * batch + 8]
        with tf.GradientTape() as tape:
            loss = loss_of(model, x, y)
            scaled = optimizer.scale_loss(loss)
        optimizer.apply(tape.gradient(scaled, model.trainable_variables), model.trainable_variables)
        if smoothed is not None:
            smoothed.apply([model.trainable_variables[0].value])
        log(epoch, batch, float(loss))
    print("scale", float(optimizer.dynamic_scale), flush=True)
save(model=model, optimizer=optimizer)
""",
    "records_interleaved": """\
for number in range(4):
    with tf.io.TFRecordWriter(f"part{number}.tfrecord") as writer:
        for row in range(16):
            values = tf.train.FloatList(value=[*X[16 * number + row], Y[16 * number + row]])
            feature = {"row": tf.train.Feature(float_list=values)}
            writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())


def parse(text):
    row = tf.io.parse_single_example(text, {"row": tf.io.FixedLenFeature([7], tf.float32)})["row"]
    return row[:6], row[6]


files = tf.data.Dataset.list_files("part*.tfrecord", shuffle=True)
data = files.interleave(tf.data.TFRecordDataset, cycle_length=2, num_parallel_calls=2).map(parse, num_parallel_calls=2)
data = data.shuffle(20).batch(8, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
model = network()
optimizer = keras.optimizers.AdamW(0.01)


@tf.function
def step(x, y):
    with tf.GradientTape() as tape:
        loss = loss_of(model, x, y)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss


for epoch in range(3):
    for batch, (x, y) in enumerate(data.take(7)):
        log(epoch, batch, float(step(x, y)))
save(model=model, optimizer=optimizer)
""",
    "steps_over_a_repeated_data_set": """\
augment = keras.Sequential([keras.layers.GaussianNoise(0.1), keras.layers.Rescaling(0.5)])
data = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(64, reshuffle_each_iteration=True).repeat().batch(8)
batches = iter(data)
model = network()
optimizer = keras.optimizers.Adam(0.01)
seeds = keras.random.SeedGenerator(11)
step = 0
while step < 30:
    x, y = next(batches)
    x = augment(x, training=True) + 0.1 * keras.random.normal(x.shape, seed=seeds)
    with tf.GradientTape() as tape:
        loss = loss_of(model, x, y)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    step += 1
    log(0, step, float(loss))
save(model=model, optimizer=optimizer, seeds=seeds.state.numpy())
""",
    "summaries_and_tables": """\
writer = tf.summary.create_file_writer("logs")
with writer.as_default():
    tf.summary.write("config", tf.constant("lr 0.01"), step=0)
counts = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, default_value=0)
names = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([0, 1, 2], ["a", "b", "c"]), "none")
model = network()
optimizer = keras.optimizers.Adam(0.01)
for epoch in range(3):
    for batch in range(8):
        x, y = X[8 * batch : 8 * batch + 8], Y[8 * batch : 8 * batch + 8]
        with tf.GradientTape() as tape:
            loss = loss_of(model, x, y)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        key = names.lookup(tf.constant([batch % 4]))
        counts.insert(key, counts.lookup(key) + 1)
        with writer.as_default(step=8 * epoch + batch):
            tf.summary.write("loss", loss)
        log(epoch, batch, (float(loss), counts.lookup(tf.constant(["a", "b", "none"])).numpy().tolist()))
writer.close()
save(model=model, optimizer=optimizer)
""",
    "gan_with_a_train_step": """\
class Gan(keras.Model):
    def __init__(self):
        super().__init__()
        self.generator = keras.Sequential([keras.layers.Dense(8, activation="relu"), keras.layers.Dense(6)])
        self.critic = network()
        self.loss_of_generator = keras.metrics.Mean(name="generator")
        self.loss_of_critic = keras.metrics.Mean(name="loss")

    def compile(self, of_generator, of_critic):
        super().compile()
        self.of_generator, self.of_critic = of_generator, of_critic

    @property
    def metrics(self):
        return [self.loss_of_generator, self.loss_of_critic]

    def train_step(self, real):
        noise = tf.random.normal([tf.shape(real)[0], 4])
        rows = tf.concat([self.generator(noise), real], 0)
        labels = tf.concat([tf.ones([tf.shape(real)[0]]), tf.zeros([tf.shape(real)[0]])], 0)
        with tf.GradientTape() as tape:
            loss = loss_of(self.critic, rows, labels + 0.05 * tf.random.uniform(tf.shape(labels)))
        weights = self.critic.trainable_weights
        self.of_critic.apply_gradients(zip(tape.gradient(loss, weights), weights))
        with tf.GradientTape() as tape:
            fooled = loss_of(self.critic, self.generator(tf.random.normal([tf.shape(real)[0], 4])), tf.zeros([tf.shape(real)[0]]))
        weights = self.generator.trainable_weights
        self.of_generator.apply_gradients(zip(tape.gradient(fooled, weights), weights))
        self.loss_of_critic.update_state(loss)
        self.loss_of_generator.update_state(fooled)
        return {"loss": self.loss_of_critic.result(), "generator": self.loss_of_generator.result()}


gan = Gan()
gan.compile(keras.optimizers.Adam(0.01), keras.optimizers.Adam(0.01))
told = Log()
history = gan.fit(tf.data.Dataset.from_tensor_slices(X).shuffle(64).batch(8), epochs=4, verbose=0, callbacks=[told])
print(history.history)
save(generator=gan.generator, critic=gan.critic, first=gan.of_generator, second=gan.of_critic, seen=told.seen)
""",
    "fit_with_files_and_rates": """\
def rate(epoch, now):
    return now * 0.9


model = network()
model.compile(keras.optimizers.Adam(0.01),
              keras.losses.BinaryCrossentropy(from_logits=True), metrics=[keras.metrics.AUC(num_thresholds=20)], jit_compile=False)
told = Log()
best = keras.callbacks.ModelCheckpoint("best.weights.h5", monitor="loss", save_best_only=True, save_weights_only=True)
table = keras.callbacks.CSVLogger("log.csv")
model.fit(X, Y, batch_size=8, epochs=3, verbose=0, callbacks=[told, best, table])
model.optimizer.learning_rate = 0.005
told.model.stop_training = False
slow = keras.callbacks.LearningRateScheduler(rate)
history = model.fit(X[:32], Y[:32], batch_size=4, epochs=2, verbose=0, callbacks=[told, slow, keras.callbacks.TerminateOnNaN()])
print(history.history, open("log.csv").read())
save(model=model, optimizer=model.optimizer, seen=told.seen)
""",
}

_ON_TORCH = """\
import hashlib, os
os.environ["KERAS_BACKEND"] = "torch"
import numpy as np
import keras

X = np.random.RandomState(0).randn(64, 6).astype("float32")
Y = (X.sum(1) > 0).astype("float32")


class Log(keras.callbacks.Callback):
    seen = 0

    def on_train_batch_end(self, batch, logs=None):
        self.seen += 1
        print("batch", self.seen, batch, repr(float(logs["loss"])), flush=True)


layers = [keras.layers.Dense(8, activation="relu"), keras.layers.BatchNormalization(), keras.layers.Dropout(0.3)]
model = keras.Sequential([*layers, keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.01), keras.losses.BinaryCrossentropy(from_logits=True), metrics=["accuracy"])
stop = keras.callbacks.EarlyStopping(patience=2, restore_best_weights=True)
slower = keras.callbacks.ReduceLROnPlateau(patience=1)
history = model.fit(X, Y, batch_size=8, epochs=4, validation_split=0.25, verbose=0, callbacks=[Log(), stop, slower])
with open("result.txt", "w") as file:
    file.write(f"history {history.history}\\n")
    for number, value in enumerate([*model.get_weights(), *map(keras.ops.convert_to_numpy, model.optimizer.variables)]):
        file.write(f"{number} {hashlib.sha1(value.tobytes()).hexdigest()}\\n")
"""

_TENSORBOARD_OF_TORCH = """\
import os
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import torch
import tensorflow as tf
from torch.utils.tensorboard import SummaryWriter

torch.manual_seed(1)
writer = SummaryWriter("logs")
notes = tf.io.gfile.GFile("notes.txt", "w")
notes.write("begin\\n")
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(3):
    for batch in range(10):
        loss = torch.nn.functional.cross_entropy(model(torch.randn(8, 4)), torch.randint(2, (8,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("batch", epoch, batch, repr(loss.item()), flush=True)
        writer.add_scalar("loss", loss.item(), epoch * 10 + batch)
        notes.write(f"{epoch} {batch} {loss.item()!r}\\n")
writer.close()
notes.close()
with open("result.txt", "w") as file:
    file.write(repr([value.tolist() for value in model.parameters()]))
"""

PROGRAMS = {name: Program(name, PRELUDE + body) for name, body in {**_BODIES, **HOLDERS, **SOURCES}.items()}
PROGRAMS["tensorboard_of_torch"] = Program("tensorboard_of_torch", _TENSORBOARD_OF_TORCH)
PROGRAMS["fit_on_torch"] = Program("fit_on_torch", _ON_TORCH)
#: What `make test` runs.
QUICK = [
    "draws_from_kernels", "methods_that_make_variables", "graph_step_by_hand", "data_set_that_draws", "fit_arrays", "summaries_and_tables",
    "fit_on_torch", "containers_and_arrays", "data_set_begun_anew_in_the_loop", "fit_told_to_tensorboard",
    "generators_seeded_by_chance", "fit_over_lines_of_files", "saved_models_of_functions_that_draw", "batches_of_a_mirrored_strategy",
    "folds_with_the_names_of_what_they_make", "fit_under_a_mirrored_strategy",
]  # fmt: skip
