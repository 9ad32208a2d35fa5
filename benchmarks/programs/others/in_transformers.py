"""Hugging Face's `Trainer`: `save_steps`, and `train(resume_from_checkpoint=True)`."""

import os

import torch
from common import BATCH_SIZE, EPOCHS, EVERY, SAVES, begin, data, end, network
from transformers import Trainer, TrainingArguments


class Model(torch.nn.Module):
    """What `Trainer` wants: named inputs, and a loss."""

    def __init__(self):
        super().__init__()
        self.net = network()

    def forward(self, x, labels):
        """One batch."""
        return {"loss": torch.nn.functional.mse_loss(self.net(x), labels)}


class Counting(Trainer):
    """Says which batch begins."""

    def training_step(self, *words, **more):
        """One batch."""
        begin(self.state.global_step)
        return super().training_step(*words, **more)


torch.manual_seed(0)
items = [{"x": x, "labels": y} for x, y in data()]
arguments = TrainingArguments(
    SAVES, num_train_epochs=EPOCHS, per_device_train_batch_size=BATCH_SIZE, learning_rate=1e-2, lr_scheduler_type="cosine",
    save_steps=EVERY, report_to=[], use_cpu=True, disable_tqdm=True, seed=0,
)  # fmt: skip
trainer = Counting(Model(), arguments, train_dataset=items)
trainer.train(resume_from_checkpoint=True if os.path.isdir(SAVES) and os.listdir(SAVES) else None)
end(trainer.model.net)
