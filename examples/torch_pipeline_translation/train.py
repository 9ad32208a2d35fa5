"""
JupyterLab's messages from English into French by a small GNMT whose layers are divided into pipeline stages, as in PipeDream's translation.

$ torchrun --nproc-per-node=4 train.py --config_path plan.json
"""

import argparse
import collections
import csv
import itertools
import json
import os
import re
import time
from importlib import resources
from pathlib import Path

import sacrebleu
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import detrain.pipeline

PAD, BEGIN, END, UNKNOWN = range(4)
HELD_OUT = 200  # pairs that nothing is trained on


def pairs_of(data_dir="", longest=60):
    """(English, French), sorted: those that differ, of at most so many characters of English."""
    folder = Path(data_dir)
    if not data_dir:
        folder = resources.files("jupyterlab_language_pack_fr_FR") / "locale" / "fr_FR" / "LC_MESSAGES"
    found = {}
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        if not file.name.endswith(".json"):
            continue
        for key, translations in json.loads(file.read_text(encoding="utf-8")).items():
            english = " ".join(key.split("\x04")[-1].split())  # what stands before is where the message is used
            if key and translations and translations[0]:
                found.setdefault(english, " ".join(translations[0].split()))
    return sorted((en, fr) for en, fr in found.items() if en != fr and 1 < len(en) <= longest)


def split(pairs, num_held_out=HELD_OUT):
    """To train on, and to test with; the same in every run."""
    order = torch.randperm(len(pairs), generator=torch.Generator().manual_seed(0)).tolist()
    return [pairs[i] for i in order[num_held_out:]], [pairs[i] for i in order[:num_held_out]]


class Pieces:
    """Parts of words: pairs of neighbours that are most frequent become one, some at a time (byte-pair encoding)."""

    def __init__(self, texts, num_rounds=40, merges_a_round=40):
        counts = collections.Counter(word for text in texts for word in self.words(text))
        spelled = {word: tuple(word) for word in counts}
        alphabet = {letter for word in counts for letter in word}
        self.merges = []
        for _ in range(num_rounds):
            found = collections.Counter()
            for word, parts in spelled.items():
                for pair in itertools.pairwise(parts):
                    found[pair] += counts[word]
            best = sorted((pair for pair in found if found[pair] > 2), key=lambda pair: (-found[pair], pair))
            merges = {pair: rank for rank, pair in enumerate(best[:merges_a_round])}
            self.merges.append(merges)
            spelled = {word: self._merged(parts, merges) for word, parts in spelled.items()}
        known = sorted(alphabet | {"".join(pair) for merges in self.merges for pair in merges})
        self.names = ["<pad>", "<begin>", "<end>", "<unknown>", *known]
        self.numbers = {name: number for number, name in enumerate(self.names)}

    @staticmethod
    def words(text):
        """Words and punctuation, with the space before them."""
        return re.findall(r" ?\w+| ?[^\w\s]", " " + text)

    @staticmethod
    def _merged(parts, merges):
        done = []
        for part in parts:
            if done and (done[-1], part) in merges:
                done[-1] += part
            else:
                done.append(part)
        return tuple(done)

    def encode(self, text):
        found = []
        for word in self.words(text):
            parts = tuple(word)
            for merges in self.merges:
                parts = self._merged(parts, merges)
            found += [self.numbers.get(part, UNKNOWN) for part in parts]
        return found

    def decode(self, numbers):
        numbers = itertools.takewhile(lambda number: number != END, numbers)
        return "".join(self.names[number] for number in numbers if number > UNKNOWN).strip()

    def padded(self, texts, length, begin=()):
        """(N, length), as every batch of a pipeline has the same length; what is longer is cut."""
        rows = [[*begin, *self.encode(text), END][:length] for text in texts]
        return torch.tensor([row + [PAD] * (length - len(row)) for row in rows])


class GNMT(nn.Module):
    """Wu et al. 2016: the encoder's first layer reads both ways; from the third on, layers are residual; each of the decoder's sees what
    its first has attended to."""

    def __init__(self, num_pieces, layers=8, width=128, dropout=0.2):
        super().__init__()
        self.embed_source = nn.Embedding(num_pieces, width, padding_idx=PAD)
        self.embed_target = nn.Embedding(num_pieces, width, padding_idx=PAD)
        self.first = nn.LSTM(width, width, batch_first=True, bidirectional=True)
        widths = [2 * width] + [width] * (layers // 2 - 2)
        self.encoder = nn.ModuleList(nn.LSTM(before, width, batch_first=True) for before in widths)
        self.asks = nn.LSTM(width, width, batch_first=True)
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.decoder = nn.ModuleList(nn.LSTM(2 * width, width, batch_first=True) for _ in range(layers // 2 - 1))
        self.drop, self.head = nn.Dropout(dropout), nn.Linear(width, num_pieces)

    def encode(self, source):  # (B, S) -> (B, S, width), and where there is padding (B, 1, S)
        x, _ = self.first(self.drop(self.embed_source(source)))  # (B, S, 2 width)
        for number, layer in enumerate(self.encoder):
            y, _ = layer(self.drop(x))
            x = x + y if number else y
        return x, (source == PAD)[:, None]

    def decode(self, target, memory, padding):  # (B, T) -> (B, T, pieces)
        x, _ = self.asks(self.drop(self.embed_target(target)))
        scores = self.query(x) @ self.key(memory).transpose(1, 2) / x.shape[-1] ** 0.5  # (B, T, S)
        attended = scores.masked_fill(padding, -1e9).softmax(-1) @ memory  # (B, T, width)
        for number, layer in enumerate(self.decoder):
            y, _ = layer(self.drop(torch.cat((x, attended), -1)))
            x = x + y if number else y
        return self.head(self.drop(x))

    def forward(self, source, target):
        memory, padding = self.encode(source)
        return self.decode(target, memory, padding)


@torch.no_grad()
def translate(model, source, length):
    """The likeliest piece, one after the other: (N, length)."""
    model.eval()
    memory, padding = model.encode(source)
    found = torch.full((len(source), 1), BEGIN, device=source.device)
    while found.shape[1] <= length and not (found == END).any(1).all():
        following = model.decode(found, memory, padding)[:, -1].argmax(-1, keepdim=True)
        found = torch.cat((found, following), 1)
    model.train()
    return found[:, 1:]


class Loss:
    """Of a sentence, in the mean: whatever parts a batch has, they add up to the same."""

    def __init__(self, smoothing):
        self.smoothing = smoothing

    def __call__(self, logits, target):  # (B, T, pieces), (B, T)
        total = F.cross_entropy(
            logits.flatten(0, 1), target.flatten(), ignore_index=PAD, reduction="sum", label_smoothing=self.smoothing
        )
        return total / len(target)


class OneProcess:
    """Does what a pipeline does, without one: the gradients of the micro-batches are added up."""

    def __init__(self, model, optimizer, loss_fn, num_micro_batches):
        self.model, self.optimizer, self.loss_fn, self.num_micro_batches = model, optimizer, loss_fn, num_micro_batches

    def step(self, *inputs, target):
        self.optimizer.zero_grad()
        total = 0.0
        parts = [one.tensor_split(self.num_micro_batches) for one in (*inputs, target)]
        for *given, wanted in zip(*parts, strict=True):
            loss = self.loss_fn(self.model(*given), wanted) * (len(wanted) / len(target))
            loss.backward()
            total = total + loss.detach()
        self.optimizer.step()
        return total

    def gather(self):
        return self.model

    def losses(self):
        return []


def rate_in(epoch, args):
    """Of learning, as in PipeDream."""
    if args.lr_policy == "polynomial":
        return args.lr * (1.0 - epoch / args.epochs) ** 2
    return args.lr * 0.1 ** (epoch // 30)


def summed(losses, is_distributed):
    """Over all ranks: without a flush, only those of the last stage know losses."""
    total = torch.tensor(sum(losses), dtype=torch.float64)
    if is_distributed:
        dist.all_reduce(total)
    return total.item()


def append_row(path, row):
    """Append one row to a CSV file; the first row brings the header."""
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(row))
        if is_new:
            writer.writeheader()
        writer.writerow(row)


def parsed():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "-m", "--module", choices=["gnmt4", "gnmt6", "gnmt8"], default="gnmt8", help="with so many LSTM layers"
    )
    parser.add_argument("--config_path", default="", help="the plan; none: one process, no stages")
    parser.add_argument(
        "--data_dir", default="", help="with message catalogues as .json [those of jupyterlab-language-pack-fr-FR]"
    )
    parser.add_argument(
        "-b", "--batch_size", type=int, default=64, help="samples of a step; of a mini-batch with 1f1b-async"
    )
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--lr_policy", choices=["step", "polynomial"], default="polynomial")
    parser.add_argument("--weight-decay", "--weight_decay", type=float, default=0.0)
    parser.add_argument("-p", "--print-freq", type=int, default=10, help="steps between two lines of progress")
    parser.add_argument(
        "-v", "--verbose_frequency", type=int, default=0, help="steps after which each rank says how long they take"
    )
    parser.add_argument(
        "--distributed_backend", choices=["gloo", "nccl"], help="[nccl if each rank can have a device of its own]"
    )
    parser.add_argument("--schedule", choices=["1f1b", "gpipe", "1f1b-async", "2bw"], default="1f1b")
    parser.add_argument("--micro-batches", type=int, default=4, help="parts of a step; 1f1b-async has none")
    parser.add_argument("--width", type=int, default=128, help="of each layer")
    parser.add_argument(
        "--length",
        type=int,
        default=16,
        help="of sentences, in pieces; longer ones are not trained on, and are cut in the test",
    )
    parser.add_argument("--dropout", type=float, default=0.2)
    parser.add_argument("--label-smoothing", type=float, default=0.1)
    parser.add_argument("--bleu-every", type=int, default=4, help="epochs between two translations of what is held out")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("out"))
    return parser.parse_args()


def main():
    args = parsed()
    is_distributed, rank = "RANK" in os.environ, int(os.environ.get("RANK", "0"))
    device = torch.device("cpu")
    if is_distributed:
        has_devices = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
        if (args.distributed_backend or ("nccl" if has_devices else "gloo")) == "nccl":
            device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(device)
        dist.init_process_group("gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl")
    torch.manual_seed(args.seed)  # the same on every rank: so are the weights and the order of the samples

    train, test = split(pairs_of(args.data_dir))
    pieces = Pieces([text for pair in train for text in pair])
    fitting = [pair for pair in train if max(len(pieces.encode(text)) for text in pair) < args.length]
    english, french = zip(*fitting, strict=True)
    train_set = TensorDataset(
        pieces.padded(english, args.length),
        pieces.padded(french, args.length, [BEGIN]),
        pieces.padded(french, args.length),
    )
    loader = DataLoader(train_set, args.batch_size, shuffle=True, drop_last=True)
    test_source, references = pieces.padded([en for en, _ in test], args.length).to(device), [fr for _, fr in test]
    model = GNMT(len(pieces.names), int(args.module[4:]), args.width, args.dropout).to(device)
    optimizer = torch.optim.Adam(model.parameters(), args.lr, weight_decay=args.weight_decay)
    loss_fn = Loss(args.label_smoothing)
    if args.config_path:
        pipe = detrain.pipeline.Pipeline(
            model, args.config_path, optimizer, loss_fn=loss_fn, schedule=args.schedule,
            num_micro_batches=args.micro_batches, emulate=not is_distributed,
        )  # fmt: skip
    else:
        pipe = OneProcess(model, optimizer, loss_fn, args.micro_batches)
    if rank == 0:
        args.out.mkdir(parents=True, exist_ok=True)
        print(f"{len(fitting)} pairs to train on, {len(test)} held out, {len(pieces.names)} pieces", flush=True)

    for epoch in range(args.epochs):
        for group in optimizer.param_groups:
            group["lr"] = rate_in(epoch, args)
        losses, start = [], time.perf_counter()
        for step, (source, target, wanted) in enumerate(loader, 1):  # (B, length) each
            loss = pipe.step(source.to(device), target.to(device), target=wanted.to(device))
            if loss is None:  # without a flush: some steps later, and only the last stage's ranks know it
                losses += pipe.losses()
            elif rank == 0:
                losses.append(loss.item())
            if rank == 0 and step % args.print_freq == 0:
                known = f": loss {loss.item():.6f}" if loss is not None else ""
                print(f"  epoch {epoch} step {step}/{len(loader)}{known}", flush=True)
            if args.verbose_frequency and step % args.verbose_frequency == 0:
                print(f"  rank {rank}: {(time.perf_counter() - start) / step * 1e3:.1f} ms a step", flush=True)
        pipe.gather()  # all weights, on every rank; without a flush, what is under way goes back first
        losses += pipe.losses()
        row = {
            "epoch": epoch,
            "lr": rate_in(epoch, args),
            "train_loss": summed(losses, is_distributed) / len(loader),
            "bleu": "",
        }
        if rank == 0:
            said = f"epoch {epoch}: train loss {row['train_loss']:.4f} a sentence"
            if (epoch + 1) % args.bleu_every == 0 or epoch + 1 == args.epochs:
                found = [pieces.decode(one) for one in translate(model, test_source, args.length).tolist()]
                row["bleu"] = sacrebleu.corpus_bleu(found, [references]).score
                said += f", BLEU {row['bleu']:.2f}"
                (args.out / "translated.txt").write_text("".join(f"{one}\n" for one in found), encoding="utf-8")
            print(f"{said}, {time.perf_counter() - start:.2f} s", flush=True)
            append_row(args.out / "log.csv", row)
    if rank == 0:
        torch.save(model.state_dict(), args.out / "last.pt")
    if is_distributed:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
