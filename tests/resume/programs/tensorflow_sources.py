"""What TensorFlow and Keras programs get their batches from, beside arrays: lines of files, pictures that layers disturb."""

SOURCES = {
    "fit_over_lines_of_files": """\
words = [str(number % 7) for number in range(300)]
for part in range(3):
    with open(f"part{part}.txt", "w") as file:
        file.write("\\n".join(" ".join(words[start : start + 10]) for start in range(part * 100, part * 100 + 100, 10)))
lines = tf.data.TextLineDataset([f"part{part}.txt" for part in range(3)])
known = keras.layers.StringLookup(vocabulary=sorted(set(words)))
tokens = lines.map(tf.strings.split).flat_map(tf.data.Dataset.from_tensor_slices).map(known)
rows = tokens.batch(4, drop_remainder=True).map(lambda row: (row[:-1], row[-1])).shuffle(20).batch(4).prefetch(2)
model = keras.Sequential([keras.layers.Embedding(8, 4), keras.layers.GRU(5, dropout=0.1), keras.layers.Dense(8)])
rates = keras.optimizers.schedules.ExponentialDecay(0.01, 10, 0.9)
model.compile(keras.optimizers.Adam(rates), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
told = Log()
history = model.fit(rows, epochs=3, verbose=0, callbacks=[told])
save(model=model, optimizer=model.optimizer, seen=told.seen, history=history.history)
""",
    "fit_over_disturbed_pictures": """\
pictures = np.random.RandomState(4).rand(72, 8, 8, 3).astype("float32")
disturb = keras.Sequential([keras.layers.RandomFlip("horizontal"), keras.layers.RandomContrast(0.2)])
rows = tf.data.Dataset.from_tensor_slices((pictures, pictures.mean((1, 2, 3)))).shuffle(72).batch(4)
rows = rows.map(lambda x, y: (disturb(x, training=True), y), num_parallel_calls=2).prefetch(2)
pooled = [keras.layers.Conv2D(4, 3), keras.layers.GlobalAveragePooling2D()]
model = keras.Sequential([keras.layers.GaussianNoise(0.1), *pooled, keras.layers.Dense(1)])
model.compile(keras.optimizers.AdamW(0.01, gradient_accumulation_steps=2), "mse", metrics=["mae"])
told = Log()
best = keras.callbacks.EarlyStopping(monitor="loss", patience=2, restore_best_weights=True)
history = model.fit(rows, epochs=3, verbose=0, callbacks=[told, best])
save(model=model, optimizer=model.optimizer, seen=told.seen, history=history.history)
""",
    "folds_with_the_names_of_what_they_make": """\
class Padded(keras.Model):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = keras.layers.Dense(3), keras.layers.Dense(1)

    def call(self, x):
        return self.outer(keras.ops.pad(self.inner(x), ((0, 0), (0, 1))))


told, names = Log(), []
for fold in range(3):
    model = Padded()
    model.compile("adam", "mse")
    model.fit(X, Y, batch_size=8, epochs=2, verbose=0, callbacks=[told])
    names += [weight.value._unique_id for weight in model.weights]
    names += [model.name, *(layer.name for layer in model.layers), *model.optimizer._trainable_variables_indices]
    keras.layers.Dense(2)(keras.layers.Input((3,)))
save(model=model, optimizer=model.optimizer, seen=told.seen, names=names, next=keras.layers.Dense(1).name)
""",
    "fit_under_a_mirrored_strategy": """\
rows = tf.data.Dataset.from_tensor_slices((X, Y[:, None])).shuffle(64).cache().shuffle(64).batch(8).prefetch(2)
with tf.distribute.MirroredStrategy().scope():
    model = network()
    model.compile("adam", "mse")
told = Log()
model.fit(rows, epochs=3, verbose=0, callbacks=[told])
save(model=model, optimizer=model.optimizer, seen=told.seen)
""",
    "batches_of_a_mirrored_strategy": """\
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
rows = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(64).batch(8).prefetch(2)
data = strategy.experimental_distribute_dataset(rows)
with strategy.scope():
    model, optimizer, seen = network(), keras.optimizers.Adam(0.01), keras.metrics.Mean()
    model.build((None, 6))
    optimizer.build(model.trainable_variables)


def step(x, y):
    with tf.GradientTape() as tape:
        loss = loss_of(model, x, y)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    seen.update_state(loss)
    return loss


@tf.function
def distributed(x, y):
    return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(step, args=(x, y)), axis=None)


for epoch in range(3):
    for batch, (x, y) in enumerate(data):
        log(epoch, batch, float(distributed(x, y)))
save(model=model, optimizer=optimizer, seen=float(seen.result()))
""",
    "saved_models_of_functions_that_draw": """\
class Embedding(tf.Module):
    def __init__(self):
        super().__init__()
        self.table, self.out = tf.Variable(tf.random.normal([30, 6])), None

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64), tf.TensorSpec([], tf.bool)])
    def __call__(self, ids, is_training):
        if self.out is None:
            self.out = tf.Variable(tf.random.normal([6, 1]))
        rows = tf.gather(self.table, ids)
        rows = tf.cond(is_training, lambda: tf.nn.dropout(rows, 0.2), lambda: rows)
        return (rows @ self.out)[:, 0]


model, momentum = Embedding(), []


@tf.function
def step(ids, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(ids, True) - y) ** 2)
    weights = model.trainable_variables
    if not momentum:
        momentum.extend(tf.Variable(tf.zeros(one.shape)) for one in weights)
    for weight, mean, gradient in zip(weights, momentum, tape.gradient(loss, weights)):
        mean.assign(0.9 * mean + tf.convert_to_tensor(gradient))
        weight.assign_sub(0.01 * mean)
    return loss


for epoch in range(3):
    for start in range(0, 64, 4):
        loss = step(tf.range(start, start + 4, dtype=tf.int64) % 30, Y[start : start + 4])
        log(epoch, start, float(loss))
    tf.saved_model.save(model, "saved")
again = tf.saved_model.load("saved")
drawn = [again(tf.range(3, dtype=tf.int64), True) for _ in range(2)]
for name in ("saved_model.pb", "fingerprint.pb"):
    os.remove(f"saved/{name}")  # they name functions by numbers that count what the process has made
save(table=model.table, out=model.out, drawn=[one.numpy() for one in drawn])
""",
    "fit_over_rows_that_draw": """\
class Pairs(keras.utils.PyDataset):
    def __init__(self):
        super().__init__()
        self.order, self.rng = np.arange(64), np.random.default_rng(5)

    def __len__(self):
        return 8

    def __getitem__(self, number):
        rows = self.order[number * 8 : number * 8 + 8]
        return (X[rows], X[self.rng.permutation(rows)]), Y[rows]

    def on_epoch_end(self):
        np.random.shuffle(self.order)


base = keras.Sequential([keras.layers.Dense(8, activation="relu"), keras.layers.LayerNormalization()])
one, other = keras.Input((6,)), keras.Input((6,))
apart = keras.layers.Lambda(lambda pair: keras.ops.abs(pair[0] - pair[1]))([base(one), base(other)])
model = keras.Model([one, other], keras.layers.Dense(1, activation="sigmoid")(keras.layers.Dropout(0.2)(apart)))
model.compile(keras.optimizers.RMSprop(0.01), "binary_crossentropy", metrics=["accuracy", keras.metrics.Precision()])
told = Log()
history = model.fit(Pairs(), epochs=4, verbose=0, callbacks=[told])
save(model=model, optimizer=model.optimizer, seen=told.seen, history=history.history)
""",
    "environment_inside_a_graph": """\
class World:
    def __init__(self):
        self.rng = np.random.RandomState(3)

    def reset(self):
        self.state, self.steps = self.rng.randn(4).astype("float32"), 0
        return self.state

    def step(self, action):
        self.steps += 1
        self.state = (0.8 * self.state + (0.3 if action else -0.3) + 0.1 * self.rng.randn(4)).astype("float32")
        return self.state, np.float32(-abs(self.state).sum()), np.int32(self.steps >= 5)


world, actor = World(), keras.Sequential([keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(2)])
optimizer = keras.optimizers.Adam(0.01)


def play(state):
    chosen, rewards = [tf.TensorArray(tf.float32, 0, dynamic_size=True) for _ in range(2)]
    for turn in tf.range(9):
        scores = actor(state[None])
        action = tf.random.categorical(scores, 1)[0, 0]
        chosen = chosen.write(turn, tf.nn.log_softmax(scores)[0, action])
        state, reward, is_over = tf.numpy_function(world.step, [action], [tf.float32, tf.float32, tf.int32])
        state.set_shape([4])
        rewards = rewards.write(turn, reward)
        if tf.cast(is_over, tf.bool):
            break
    return chosen.stack(), rewards.stack()


@tf.function
def step(state):
    with tf.GradientTape() as tape:
        chosen, rewards = play(state)
        loss = -tf.reduce_sum(chosen * tf.stop_gradient(tf.cumsum(rewards, reverse=True)))
    weights = actor.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
    return tf.reduce_sum(rewards)


batch, recent = 0, [-99.0]
while np.mean(recent[-5:]) < 99 and batch < 40:
    recent.append(float(step(tf.constant(world.reset()))))
    log(0, batch, recent[-1])
    batch += 1
save(actor=actor, optimizer=optimizer, recent=recent)
""",
}
