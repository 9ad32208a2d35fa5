"""Where the data-loading call stands, and loaders whose state cannot be captured."""

from .program import VARIED, VARIED_BY_32, Loader, called, program

_DATA = """\
class Data:
    def __init__(self, count):
        self.x, self.y = points(count)
        self.left = 0

    def grab(self, size=8):
        if self.left == 0:
            self.left = len(self.x) // size
            return None
        self.left -= 1
        begin = size * self.left
        return self.x[begin : begin + size], self.y[begin : begin + size]

    def take(self, size):
        return self.grab(size) or self.grab(size)


model = net()
optimizer = torch.optim.Adam(model.parameters())
data = Data(args.n)
"""

#: The shape of a music transformer's data: files of events, of which a window is cut out; some are too short.
_MUSIC = """\
import os
import random

import torch


class Data:
    def __init__(self, folder):
        self.files = [os.path.join(folder, name) for name in sorted(os.listdir(folder))]
        self.songs = [[int(word) for word in open(path).read().split()] for path in self.files]

    def slide_seq2seq_batch(self, size, length):
        songs = random.sample(self.songs, size)
        rows = [self._cut(song, length + 1) for song in songs]
        return torch.tensor([row[:-1] for row in rows]), torch.tensor([row[1:] for row in rows])

    def _cut(self, song, length):
        if len(song) < length:
            raise IndexError("too short")
        begin = random.randrange(len(song) - length + 1)
        return song[begin : begin + length]
"""
_SONG = " ".join(str(i * i % 11) for i in range(20)) + "\n"
_SONGS = {
    f"{folder}/{i:02}.txt": _SONG if i else "1 2 3\n" for folder, n in (("small", 16), ("big", 24)) for i in range(n)
}

CALLS = [
    program(
        "call_in_try_except_continue",
        {
            "train.py": """\
from data import Data

dataset = Data(args.data)
model = nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 11))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(2):  # <epoch>
    for batch in range(len(dataset.files)):  # <batch>
        try:
            x, y = dataset.slide_seq2seq_batch(2, 6)  # <dl>
        except IndexError:
            continue
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # <update>
        print(epoch, batch, loss.item())
""",
            "data.py": _MUSIC,
            **_SONGS,
        },
        arguments="--data small",
        vary="--data big",
        diff_size=8,
        loaders=(called("data.Data.slide_seq2seq_batch"),),
    ),
    program(
        "call_in_a_walrus",
        _DATA
        + """\
for epoch in range(2):  # <epoch>
    data.left = len(data.x) // 8
    while (batch := data.grab()) is not None:  # <batch> <dl>
        learn(model, optimizer, *batch)
        optimizer.step()  # <update>
""",
        loaders=(called("train.Data.grab"),),
        **VARIED_BY_32,
    ),
    program(
        "call_in_a_tuple_assignment",
        _DATA
        + """\
step = 0
while step < 20:  # <batch>
    (x, y), step = data.take(8), step + 1  # <dl>
    learn(model, optimizer, x, y)
    optimizer.step()  # <update>
""",
        loaders=(called("train.Data.take"),),
        **VARIED_BY_32,
    ),
    program(
        "call_as_an_argument",
        _DATA
        + """\
for epoch in range(2):  # <epoch>
    for batch in range(8):  # <batch>
        learn(model, optimizer, *data.take(size=8))  # <dl>
        optimizer.step()  # <update>
""",
        loaders=(called("train.Data.take"),),
        **VARIED,
    ),
    program(
        "call_in_a_helper",
        _DATA
        + """\
def fetch(source, size):
    x, y = source.take(size)  # <dl>
    return x.float(), y


for epoch in range(2):  # <epoch>
    for batch in range(8):  # <batch>
        x, y = fetch(data, 8)
        learn(model, optimizer, x, y)
        optimizer.step()  # <update>
""",
        loaders=(called("train.Data.take"),),
        wrapper=("train", "fetch"),
        **VARIED_BY_32,
    ),
    program(
        "call_in_a_helper_in_another_file",
        {
            "train.py": _DATA
            + """\
import feeding

for epoch in range(2):  # <epoch>
    for batch in range(8):  # <batch>
        x, y = feeding.fetch(data, 8)
        learn(model, optimizer, x, y)
        optimizer.step()  # <update>
""",
            "feeding.py": """\
def fetch(source, size):
    for _ in range(3):
        pair = source.grab(size)  # <dl>
        if pair is not None:
            return pair
    raise LookupError("no data")
""",
        },
        loaders=(called("train.Data.grab"),),
        wrapper=("feeding", "fetch"),
        **VARIED,
    ),
    program(
        "call_in_the_step_function",
        _DATA
        + """\
def advance(model, optimizer, data):
    x, y = data.take(8)  # <dl>
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # <update>
    return loss.item()


for epoch in range(2):  # <epoch>
    losses = 0.0
    for batch in range(8):  # <batch>
        losses += advance(model, optimizer, data)
    print(epoch, losses)
""",
        loaders=(called("train.Data.take"),),
        wrapper=("train", "advance"),
        **VARIED_BY_32,
    ),
    program(
        "calls_until_a_sentinel",
        _DATA
        + """\
for epoch in range(2):  # <epoch>
    data.left = len(data.x) // 8
    for x, y in iter(data.grab, None):  # <batch> <dl>
        learn(model, optimizer, x, y)
        optimizer.step()  # <update>
""",
        loaders=(Loader("train.Data", ("train", "Data.grab"), persistent=True),),
        **VARIED,
    ),
    program(
        "prefetching_thread",
        """\
class Prefetcher:
    def __init__(self, count):
        self.x, self.y = points(count)
        self.queue = queue.Queue(4)
        self.thread = threading.Thread(target=self.fill, daemon=True)
        self.thread.start()

    def fill(self):
        for place in itertools.count(0, 8):
            rows = [(place + i) % len(self.x) for i in range(8)]
            self.queue.put((self.x[rows], self.y[rows]))

    def pull(self):
        return self.queue.get()


model = net()
optimizer = torch.optim.Adam(model.parameters())
data = Prefetcher(args.n)
for epoch in range(2):  # <epoch>
    for batch in range(8):  # <batch>
        x, y = data.pull()  # <dl>
        learn(model, optimizer, x, y)
        optimizer.step()  # <update>
""",
        loaders=(called("train.Prefetcher.pull", persistent=False),),
        **VARIED_BY_32,
    ),
    program(
        "csv_reader",
        """\
def write(count):
    x, y = points(count)
    with open("points.csv", "w", newline="") as file:
        csv.writer(file).writerows(x.tolist())
    return y


class Table:
    def __init__(self, labels):
        self.labels, self.place = labels, 0
        self.rows = csv.reader(open("points.csv", newline=""))

    def read_some(self, size=8):
        rows = [[float(word) for word in row] for row in itertools.islice(self.rows, size)]
        self.place += len(rows)
        return torch.tensor(rows), self.labels[self.place - len(rows) : self.place]


labels = write(args.n)
model = net()
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(2):  # <epoch>
    table = Table(labels)
    for batch in range(args.n // 8):  # <batch>
        x, y = table.read_some()  # <dl>
        learn(model, optimizer, x, y)
        optimizer.step()  # <update>
""",
        loaders=(called("train.Table.read_some", persistent=True),),
        **VARIED_BY_32,
    ),
    program(
        "socket_in_the_loader",
        """\
class Feed:
    def __init__(self, count):
        self.x, self.y = points(count)
        self.near, self.far = socket.socketpair()
        self.place = 0

    def receive(self):
        self.far.sendall(self.place.to_bytes(4, "little"))
        begin = int.from_bytes(self.near.recv(4), "little")
        self.place = (begin + 8) % len(self.x)
        return self.x[begin : begin + 8], self.y[begin : begin + 8]


model = net()
optimizer = torch.optim.Adam(model.parameters())
feed = Feed(args.n)
for epoch in range(2):  # <epoch>
    for batch in range(8):  # <batch>
        x, y = feed.receive()  # <dl>
        learn(model, optimizer, x, y)
        optimizer.step()  # <update>
""",
        loaders=(called("train.Feed.receive", persistent=False),),
        **VARIED,
    ),
    program(
        "scandir_in_the_loader",
        {
            "train.py": """\
class Folder:
    def __init__(self, path):
        self.names = sorted(os.listdir(path))
        self.entries = os.scandir(path)

    def read_pair(self):
        found = [open(entry.path).read().split() for entry in itertools.islice(self.entries, 2)]
        rows = torch.tensor([[float(word) for word in (words * 6)[:6]] for words in found])
        return rows, (rows.sum(1) > 20).long()


model = net()
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(2):  # <epoch>
    folder = Folder(args.data)
    for batch in range(len(folder.names) // 2):  # <batch>
        x, y = folder.read_pair()  # <dl>
        learn(model, optimizer, x, y)
        optimizer.step()  # <update>
""",
            **_SONGS,
        },
        arguments="--data small",
        vary="--data big",
        diff_size=8,
        loaders=(called("train.Folder.read_pair", persistent=False),),
    ),
]
