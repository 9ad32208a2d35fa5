"""`torch.save` after each epoch, of what tutorials name: model, optimizer, scheduler, epoch. With RANDOM=1 also of torch's generator."""

import os

import torch
from common import BATCH_SIZE, BATCHES, EPOCHS, SAVES, begin, data, end, network, schedule

torch.manual_seed(0)
net = network()
optimizer = torch.optim.Adam(net.parameters(), 1e-2)
scheduler = schedule(optimizer)
loader = torch.utils.data.DataLoader(data(), BATCH_SIZE, shuffle=True)
has_random = os.environ.get("RANDOM") == "1"
first = 0
if os.path.exists(f"{SAVES}/last.pt"):
    saved = torch.load(f"{SAVES}/last.pt")
    net.load_state_dict(saved["net"])
    optimizer.load_state_dict(saved["optimizer"])
    scheduler.load_state_dict(saved["scheduler"])
    if has_random:
        torch.set_rng_state(saved["random"])
    first = saved["epoch"] + 1
for epoch in range(first, EPOCHS):
    for number, (x, y) in enumerate(loader):
        begin(epoch * BATCHES + number)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(net(x), y).backward()
        optimizer.step()
    scheduler.step()
    state = {
        "net": net.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict(), "epoch": epoch,
        "random": torch.get_rng_state(),
    }  # fmt: skip
    os.makedirs(SAVES, exist_ok=True)
    torch.save(state, f"{SAVES}/partial.pt")
    os.replace(f"{SAVES}/partial.pt", f"{SAVES}/last.pt")
end(net)
