"""Trains with the loop of a library, on several ranks: `transformers`, `accelerate`, `lightning`; prints what each rank ends with."""

import hashlib
import os
import random
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

X = torch.randn(384, 12, generator=torch.Generator().manual_seed(3))
Y = X[:, :3].argmax(1)


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return len(X)

    def __getitem__(self, number):
        return {"x": X[number] + 0.01 * random.random(), "labels": Y[number]}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Dropout(0.2), nn.Linear(24, 24), nn.Tanh())
        self.head = nn.Linear(24, 3)

    def forward(self, x, labels=None):
        logits = self.head(self.body(x))
        time.sleep(0.01)  # for the killer
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def train_transformers():
    from transformers import Trainer, TrainingArguments, set_seed

    set_seed(5)
    arguments = TrainingArguments(
        "trained", num_train_epochs=3, per_device_train_batch_size=8, gradient_accumulation_steps=2, learning_rate=1e-3, logging_steps=5,
        save_strategy="no", report_to=[], disable_tqdm=True, seed=5, use_cpu=True, eval_strategy="epoch",
    )  # fmt: skip
    net = Net()
    Trainer(net, arguments, train_dataset=Data(), eval_dataset=torch.utils.data.Subset(Data(), range(64))).train()
    return net


def train_accelerate():
    from accelerate import Accelerator
    from accelerate.utils import set_seed

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    set_seed(5, device_specific=True)
    net = Net()
    loader = torch.utils.data.DataLoader(Data(), batch_size=8, shuffle=True)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 60)
    model, optimizer, loader, scheduler = accelerator.prepare(net, optimizer, loader, scheduler)
    for epoch in range(3):
        for batch in loader:
            with accelerator.accumulate(model):
                loss = model(**batch)["loss"]
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        accelerator.print(f"epoch {epoch} {loss.item():.8f}", flush=True)
    return net


def train_lightning():
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = Net()

        def training_step(self, batch, _):
            return self.net(**batch)["loss"]

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), 1e-3)

    lightning.seed_everything(5)
    module = Module()
    trainer = lightning.Trainer(
        max_epochs=3, accelerator="cpu", devices=int(os.environ["WORLD_SIZE"]), strategy="ddp", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, torch.utils.data.DataLoader(Data(), batch_size=8, shuffle=True))
    return module


def main():
    net = {"transformers": train_transformers, "accelerate": train_accelerate, "lightning": train_lightning}[
        sys.argv[1]
    ]()
    digest = hashlib.sha256()
    for parameter in net.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    sys.stdout.write(f"final {os.environ['RANK']} {digest.hexdigest()} {torch.randn(1).item()} {random.random()}\n")
    sys.stdout.flush()
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
