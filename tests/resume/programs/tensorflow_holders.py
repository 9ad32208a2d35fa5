"""What TensorFlow and Keras programs keep things in: containers behind wrappers, tables, arrays, writers, models that the loop makes."""

HOLDERS = {
    "models_made_in_folds": """\
scores = []
for fold in range(3):
    model = network()
    optimizer = keras.optimizers.Adam(0.01)
    taught = [index for index in range(0, 64, 8) if index // 8 % 3 != fold]
    for epoch in range(2):
        for index in taught:
            x, y = X[index : index + 8], Y[index : index + 8]
            with tf.GradientTape() as tape:
                loss = loss_of(model, x, y)
            optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
            log(fold * 2 + epoch, index, float(loss))
    scores.append((fold, float(loss), model))
save(model=model, optimizer=optimizer, scores=[score[:2] for score in scores], first=scores[0][2])
""",
    "containers_and_arrays": """\
class Meter(tf.Module):
    def __init__(self):
        super().__init__()
        self.scale = tf.Variable(1.0)
        self.pair, self.by_name = (2, self.scale), {"scale": [self.scale]}


meter = Meter()
model = network()
optimizer = keras.optimizers.SGD(0.05)
seen = tf.lookup.experimental.DenseHashTable(tf.int64, tf.float32, 0.0, empty_key=-1, deleted_key=-2)
words = tf.lookup.experimental.DenseHashTable(tf.string, tf.int64, -1, empty_key="", deleted_key="$")
losses = tf.TensorArray(tf.float32, size=0, dynamic_size=True, clear_after_read=False)
for batch in range(32):
    key = tf.constant([batch % 7], tf.int64)
    with tf.GradientTape() as tape:
        loss = loss_of(model, X[batch : batch + 8], Y[batch : batch + 8]) * meter.pair[1]
    variables = [*model.trainable_variables, meter.scale]
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
    meter.last = (batch, float(loss), (batch, [meter.scale]))
    seen.insert(key, seen[key] + loss)
    words.insert(tf.constant([str(batch)]), [tf.constant(batch, tf.int64)])
    words.remove(tf.constant([str(batch - 3)]))
    losses = losses.write(batch, loss)
    log(0, batch, (float(loss), int(words.size()), float(seen[key][0])))
print("batch end", meter.last[:2], float(tf.reduce_sum(losses.stack())), meter.by_name["scale"][0] is meter.last[2][1][0])
save(model=model, optimizer=optimizer, scale=meter.scale)
""",
    "switched_to_run_eagerly": """\
tf.config.run_functions_eagerly(False)
model = network(0.0)
optimizer = keras.optimizers.Adam(0.01)


@tf.function
def step(x, y):
    with tf.GradientTape() as tape:
        loss = loss_of(model, x, y)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss


step(X[:8], Y[:8])
for batch in range(24):
    if batch == 8:
        tf.config.run_functions_eagerly(True)
    log(0, batch, float(step(X[batch : batch + 8], Y[batch : batch + 8])))
save(model=model, optimizer=optimizer)
""",
    "fit_told_to_tensorboard": """\
model = network()
model.compile(optimizer="adam", loss="mse", metrics=["mae"])
board = keras.callbacks.TensorBoard("board", histogram_freq=1, update_freq=2)
fitted = model.fit(
    X, Y, batch_size=8, epochs=3, validation_split=0.25, verbose=0, callbacks=[board, keras.callbacks.CSVLogger("log.csv"), Log()]
)
save(model=model, optimizer=model.optimizer, history=fitted.history)
""",
    "generators_seeded_by_chance": """\
weight = tf.Variable(0.5)
own = tf.random.Generator.from_non_deterministic_state()
for batch in range(32):
    x = own.normal([4])
    if batch > 3:
        x = x + tf.random.get_global_generator().normal([4])
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((weight - x) ** 2)
    weight.assign_sub(0.1 * tape.gradient(loss, weight))
    if batch % 9 == 8:
        own = tf.random.Generator.from_non_deterministic_state().split(2)[1]
    log(0, batch, float(loss))
save(weight=weight)
""",
    "data_set_begun_anew_in_the_loop": """\
model = network(0.0)
optimizer = keras.optimizers.Adam(0.01)
shaken = tf.data.Dataset.from_tensor_slices((X, Y)).map(lambda x, y: (x + 0.1 * tf.random.normal([6]), y)).shuffle(64).batch(8)
feed = iter(shaken)
for batch in range(40):
    element = next(feed, None)
    if element is None:
        feed = iter(shaken)
        element = next(feed)
    with tf.GradientTape() as tape:
        loss = loss_of(model, *element)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    log(0, batch, float(loss))
save(model=model, optimizer=optimizer)
""",
    "gradients_through_a_loop_of_a_graph": """\
weight = tf.Variable(0.5)


@tf.function
def powers(x):
    found = tf.TensorArray(tf.float32, 3)
    for power in tf.range(3):
        found = found.write(power, x ** tf.cast(power, tf.float32))
    return found.stack()


for batch in range(32):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((tf.reduce_sum(powers(weight)) - X[batch]) ** 2)
    weight.assign_sub(0.01 * tape.gradient(loss, weight))
    log(0, batch, float(loss))
save(weight=weight)
""",
}
