"""Two networks against each other, with critic steps inside each batch."""

import argparse

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--n", type=int, default=512)
args = parser.parse_args()
torch.manual_seed(0)
loader = torch.utils.data.DataLoader(torch.randn(args.n, 16), batch_size=8, shuffle=True)
critic, maker = (
    torch.nn.Sequential(torch.nn.Linear(16, 128), torch.nn.ReLU(), torch.nn.Linear(128, out)) for out in (1, 16)
)
critic_optimizer, maker_optimizer = (torch.optim.RMSprop(one.parameters()) for one in (critic, maker))
for _epoch in range(4):
    for real in loader:
        for _ in range(3):
            loss = critic(maker(torch.randn(8, 16)).detach()).mean() - critic(real).mean()
            critic_optimizer.zero_grad()
            loss.backward()
            critic_optimizer.step()
        maker_optimizer.zero_grad()
        (-critic(maker(torch.randn(8, 16))).mean()).backward()
        maker_optimizer.step()
