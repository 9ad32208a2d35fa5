"""
A small character-level GPT on the help texts that come with every Python (pydoc_data.topics, about 465 kB of English).

Run it plainly, or override any of the values below:
$ python train.py
$ python train.py --n_layer=4 --max_iters=2000 --out_dir=out-big
"""

import ast
import math
import os
import sys
import time
from dataclasses import dataclass
from pydoc_data.topics import topics

import torch
from torch import nn
from torch.nn import functional as F

# -----------------------------------------------------------------------------
# the defaults; every one can be set from the command line as --key=value
out_dir = "out"
eval_interval = 50  # steps
eval_iters = 10  # batches per estimate and split
log_interval = 10  # steps
always_save_checkpoint = False  # if True, save after each evaluation
# data
gradient_accumulation_steps = 2  # micro-steps per step
batch_size = 12  # sequences per micro-step
block_size = 64  # characters of context
# model
n_layer = 3
n_head = 4
n_embd = 64
dropout = 0.1
# adamw
learning_rate = 3e-3
max_iters = 800
weight_decay = 0.1
beta1 = 0.9
beta2 = 0.99
grad_clip = 1.0
# learning rate: linear warm-up, then half a cosine
warmup_iters = 40
lr_decay_iters = 800
min_lr = 3e-4
# the end
sample_length = 200  # characters of text to write
seed = 1337
device = "cpu"  # or "cuda"
config_keys = [k for k, v in globals().items() if not k.startswith("_") and isinstance(v, (int, float, bool, str))]
for arg in sys.argv[1:]:
    key, is_assignment, text = arg.removeprefix("--").partition("=")
    if not arg.startswith("--") or not is_assignment or key not in config_keys:
        sys.exit(f"{arg}: expected --key=value with one of the keys {', '.join(config_keys)}")
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        value = text  # a plain word is a string
    if isinstance(globals()[key], float) and type(value) is int:
        value = float(value)
    if type(value) is not type(globals()[key]):
        sys.exit(f"{arg}: expected a value of type {type(globals()[key]).__name__}")
    print(f"overriding: {key} = {value}")
    globals()[key] = value
config = {k: globals()[k] for k in config_keys}
# -----------------------------------------------------------------------------

os.makedirs(out_dir, exist_ok=True)
torch.manual_seed(seed)

# the data: one long row of characters, the last tenth for validation
corpus = "\n\n".join(topics[name] for name in sorted(topics))
chars = sorted(set(corpus))
vocab_size = len(chars)
stoi = {c: i for i, c in enumerate(chars)}
data = torch.tensor([stoi[c] for c in corpus])  # (N,)
train_data, val_data = data[: int(0.9 * len(data))], data[int(0.9 * len(data)) :]
tokens_per_iter = gradient_accumulation_steps * batch_size * block_size
print(f"{len(corpus):,} characters, {vocab_size} different; {tokens_per_iter:,} per step")


def get_batch(split):
    source = train_data if split == "train" else val_data
    ix = torch.randint(len(source) - block_size, (batch_size,))
    x = torch.stack([source[i : i + block_size] for i in ix])  # (B, T)
    y = torch.stack([source[i + 1 : i + 1 + block_size] for i in ix])  # (B, T), one character on
    return x.to(device), y.to(device)


@dataclass
class GPTConfig:
    vocab_size: int
    block_size: int
    n_layer: int
    n_head: int
    n_embd: int
    dropout: float


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.n_head, self.dropout = config.n_head, config.dropout
        self.qkv = nn.Linear(config.n_embd, 3 * config.n_embd, bias=False)
        self.proj = nn.Linear(config.n_embd, config.n_embd, bias=False)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.n_head, C // self.n_head).permute(2, 0, 3, 1, 4)  # (B, H, T, C/H)
        p = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)  # (B, H, T, C/H)
        return self.proj(y.transpose(1, 2).reshape(B, T, C))


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(config.n_embd), nn.LayerNorm(config.n_embd)
        self.attn = Attention(config)
        self.mlp = nn.Sequential(
            nn.Linear(config.n_embd, 4 * config.n_embd), nn.GELU(), nn.Linear(4 * config.n_embd, config.n_embd)
        )
        self.drop = nn.Dropout(config.dropout)

    def forward(self, x):  # (B, T, C)
        x = x + self.drop(self.attn(self.ln1(x)))
        return x + self.drop(self.mlp(self.ln2(x)))


class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.block_size = config.block_size
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.block_size, config.n_embd)
        self.drop = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.ln = nn.LayerNorm(config.n_embd)
        self.head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.apply(self.init_weights)
        self.head.weight = self.wte.weight  # tied

    @staticmethod
    def init_weights(module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, idx, targets=None):  # (B, T), (B, T)
        x = self.drop(self.wte(idx) + self.wpe(torch.arange(idx.shape[1], device=idx.device)))  # (B, T, C)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.ln(x))  # (B, T, vocab)
        loss = None if targets is None else F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return logits, loss

    @torch.no_grad()
    def generate(self, idx, num_new):  # (B, T) -> (B, T + num_new)
        for _ in range(num_new):
            logits, _ = self(idx[:, -self.block_size :])
            probs = F.softmax(logits[:, -1], dim=-1)  # (B, vocab)
            idx = torch.cat((idx, torch.multinomial(probs, 1)), dim=1)
        return idx


iter_num = 0
best_val_loss = 1e9
model_args = {k: config[k] for k in ("block_size", "n_layer", "n_head", "n_embd", "dropout")}
model = GPT(GPTConfig(vocab_size=vocab_size, **model_args)).to(device)
print(f"{sum(p.numel() for p in model.parameters()):,} parameters")

# matrices decay, vectors (layer norms, biases) do not
decay = [p for p in model.parameters() if p.dim() >= 2]
no_decay = [p for p in model.parameters() if p.dim() < 2]
groups = [{"params": decay, "weight_decay": weight_decay}, {"params": no_decay, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=learning_rate, betas=(beta1, beta2))


@torch.no_grad()
def estimate_loss():
    out = {}
    model.eval()
    for split in ("train", "val"):
        losses = torch.zeros(eval_iters)
        for k in range(eval_iters):
            _, loss = model(*get_batch(split))
            losses[k] = loss.item()
        out[split] = losses.mean().item()
    model.train()
    return out


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    if it > lr_decay_iters:
        return min_lr
    ratio = (it - warmup_iters) / (lr_decay_iters - warmup_iters)  # 0..1
    return min_lr + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (learning_rate - min_lr)


X, Y = get_batch("train")  # the very first batch
t0 = time.time()
while True:
    lr = get_lr(iter_num)
    for param_group in optimizer.param_groups:
        param_group["lr"] = lr

    if iter_num % eval_interval == 0:
        losses = estimate_loss()
        print(f"step {iter_num}: train loss {losses['train']:.4f}, val loss {losses['val']:.4f}", flush=True)
        if losses["val"] < best_val_loss or always_save_checkpoint:
            best_val_loss = losses["val"]
            if iter_num > 0:
                checkpoint = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "model_args": model_args,
                    "iter_num": iter_num,
                    "best_val_loss": best_val_loss,
                    "config": config,
                }
                torch.save(checkpoint, os.path.join(out_dir, "ckpt.pt"))

    for _ in range(gradient_accumulation_steps):
        logits, loss = model(X, Y)
        loss = loss / gradient_accumulation_steps
        X, Y = get_batch("train")  # the next batch, while the model is busy
        loss.backward()
    if grad_clip != 0.0:
        torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)

    t1 = time.time()
    dt = t1 - t0
    t0 = t1
    if iter_num % log_interval == 0:
        lossf = loss.item() * gradient_accumulation_steps  # undo the division above; of the last micro-step
        print(f"step {iter_num}: loss {lossf:.4f}, {dt * 1000:.2f}ms", flush=True)
    iter_num += 1

    if iter_num > max_iters:
        break

torch.save(model.state_dict(), os.path.join(out_dir, "last.pt"))
model.eval()
start = torch.tensor([[stoi["\n"]]], device=device)
print("".join(chars[i] for i in model.generate(start, sample_length)[0].tolist()))
