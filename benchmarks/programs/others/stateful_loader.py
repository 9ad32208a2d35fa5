"""`torch.save` within epochs, with torchdata's `StatefulDataLoader` and torch's generator."""

import os

import torch
from common import BATCH_SIZE, BATCHES, EPOCHS, EVERY, SAVES, begin, data, end, network, schedule
from torchdata.stateful_dataloader import StatefulDataLoader

torch.manual_seed(0)
net = network()
optimizer = torch.optim.Adam(net.parameters(), 1e-2)
scheduler = schedule(optimizer)
loader = StatefulDataLoader(data(), BATCH_SIZE, shuffle=True)
first, done = 0, 0
if os.path.exists(f"{SAVES}/last.pt"):
    saved = torch.load(f"{SAVES}/last.pt", weights_only=False)
    net.load_state_dict(saved["net"])
    optimizer.load_state_dict(saved["optimizer"])
    scheduler.load_state_dict(saved["scheduler"])
    loader.load_state_dict(saved["loader"])
    torch.set_rng_state(saved["random"])
    first, done = saved["epoch"], saved["batch"] + 1
for epoch in range(first, EPOCHS):
    for number, (x, y) in enumerate(loader, done):
        begin(epoch * BATCHES + number)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(net(x), y).backward()
        optimizer.step()
        if (epoch * BATCHES + number + 1) % EVERY == 0:
            state = {
                "net": net.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict(),
                "loader": loader.state_dict(), "random": torch.get_rng_state(), "epoch": epoch, "batch": number,
            }  # fmt: skip
            os.makedirs(SAVES, exist_ok=True)
            torch.save(state, f"{SAVES}/partial.pt")
            os.replace(f"{SAVES}/partial.pt", f"{SAVES}/last.pt")
    done = 0
    scheduler.step()
end(net)
