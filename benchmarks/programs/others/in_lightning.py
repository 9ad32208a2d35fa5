"""Lightning: `ModelCheckpoint(every_n_train_steps=…, save_last=True)`, and `fit(ckpt_path="last")`. With SAVES=0 it saves nothing."""

import os

import lightning
import torch
from common import BATCH_SIZE, BATCHES, EPOCHS, EVERY, SAVES, begin, data, end, network, schedule


class Module(lightning.LightningModule):
    """The training."""

    def __init__(self):
        super().__init__()
        self.net = network()

    def training_step(self, batch, number):
        """One batch."""
        begin(self.current_epoch * BATCHES + number)
        x, y = batch
        return torch.nn.functional.mse_loss(self.net(x), y)

    def configure_optimizers(self):
        """Both."""
        optimizer = torch.optim.Adam(self.parameters(), 1e-2)
        return [optimizer], [schedule(optimizer)]


lightning.seed_everything(0)
module = Module()
has_saves = os.environ.get("SAVES") != "0"
saves = (
    [lightning.pytorch.callbacks.ModelCheckpoint(SAVES, every_n_train_steps=EVERY, save_last=True)] if has_saves else []
)
trainer = lightning.Trainer(
    max_epochs=EPOCHS, callbacks=saves, enable_checkpointing=has_saves, logger=False, enable_progress_bar=False,
    accelerator="cpu", devices=1,
)  # fmt: skip
loader = torch.utils.data.DataLoader(data(), BATCH_SIZE, shuffle=True)
trainer.fit(module, loader, ckpt_path="last" if has_saves else None)
end(module.net)
