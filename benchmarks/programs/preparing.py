"""Training after a long preparation in loops of plain Python, the dearest place for a tracer."""

import argparse
import collections
import itertools
import random

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--n", type=int, default=2000)
args = parser.parse_args()
random.seed(0)
torch.manual_seed(0)

texts = ["".join(random.choice("abcdefgh ") for _ in range(200)) for _ in range(args.n)]
counts: collections.Counter[str] = collections.Counter()
for text in texts:
    for first, second in itertools.pairwise(text):
        counts[first + second] += 1
names = {pair: number for number, (pair, _) in enumerate(counts.most_common())}
rows = []
for text in texts:
    codes = []
    position = 0
    while position + 1 < len(text):
        codes.append(names[text[position : position + 2]])
        position += 2
    rows.append(torch.tensor(codes))

loader = torch.utils.data.DataLoader(rows, batch_size=16, shuffle=True)
model = torch.nn.Sequential(torch.nn.Embedding(len(names), 32), torch.nn.Linear(32, len(names)))
optimizer = torch.optim.AdamW(model.parameters())
for _epoch in range(3):
    for batch in loader:
        loss = torch.nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
