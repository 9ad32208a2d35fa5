"""Train a small Music Transformer on a folder of event sequences; see README.md."""

import argparse
import pathlib

import keras
import tensorflow as tf
from data import NUM_EVENTS, Data
from model import WarmUp, music_transformer

parser = argparse.ArgumentParser()
parser.add_argument("--data", default="data")
parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("out"))
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--batch", type=int, default=4)
parser.add_argument("--length", type=int, default=48)
args = parser.parse_args()
args.out.mkdir(parents=True, exist_ok=True)

data = Data(args.data)
model = music_transformer(NUM_EVENTS, args.length)
model.compile(
    optimizer=keras.optimizers.Adam(WarmUp(3e-3, 40), beta_2=0.98),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
train_writer = tf.summary.create_file_writer(str(args.out / "logs" / "train"))
eval_writer = tf.summary.create_file_writer(str(args.out / "logs" / "eval"))
step = skipped = 0
best = float("inf")

for epoch in range(args.epochs):
    model.reset_metrics()
    for b in range(len(data) // args.batch * 4):
        try:
            x, y = data.batch(args.batch, args.length)
        except IndexError:
            skipped += 1
            continue
        loss, accuracy = model.train_on_batch(x, y)
        step += 1
        with train_writer.as_default():
            tf.summary.scalar("loss", loss, step=step)
            tf.summary.scalar("accuracy", accuracy, step=step)
        if b % 10 == 0:
            try:
                eval_loss, eval_accuracy = model.test_on_batch(*data.batch(2, args.length, "eval"))
            except IndexError:
                continue
            with eval_writer.as_default():
                tf.summary.scalar("loss", eval_loss, step=step)
            print(
                f"epoch {epoch} batch {b}: loss {loss:.4f}, accuracy {accuracy:.3f}, eval {eval_loss:.4f}", flush=True
            )
            if eval_loss < best:
                best = eval_loss
                model.save(args.out / "best.keras")
    model.save(args.out / "last.keras")
print(f"{step} steps, {skipped} batches with a tune too short, best {best:.4f}")
