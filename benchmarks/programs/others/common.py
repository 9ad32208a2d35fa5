"""What the programs of `benchmarks/others.py` share: data, a network, and the words by which they are compared.

Each trains the same network on the same data, with dropout and shuffled batches, saves in its own way, and at its end prints the digest of
its weights. It prints "batch N" before each batch; the batch that KILL_AT names is its last: the process kills itself there, as a power cut
would.
"""

import hashlib
import os
import signal

import torch

EPOCHS, BATCHES, BATCH_SIZE = 4, 40, 16
#: A checkpoint after so many batches, where one can be taken within an epoch.
EVERY = 15
SAVES = "saves"


def data():
    """The items."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(BATCHES * BATCH_SIZE, 16, generator=generator)
    return torch.utils.data.TensorDataset(inputs, inputs.sin().sum(1, keepdim=True))


def network():
    """With random numbers drawn in each pass."""
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Dropout(0.2), torch.nn.Linear(32, 1))


def schedule(optimizer):
    """Steps once an epoch."""
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS)


def begin(number):
    """Batch `number` of the run, from 0, begins."""
    print("batch", number, flush=True)
    if number == int(os.environ.get("KILL_AT", "-1")):
        os.kill(os.getpid(), signal.SIGKILL)


def end(net):
    """The training is done."""
    weights = b"".join(tensor.detach().numpy().tobytes() for tensor in net.state_dict().values())
    print("weights", hashlib.sha256(weights).hexdigest(), flush=True)
