"""Files that a script writes while it trains."""

_BEGIN = """\
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loader = DataLoader(Points(), batch_size=4, shuffle=True)
"""
_END = "save(model=model, optimizer=optimizer)\n"

FILES = {
    "csv_appended": _BEGIN
    + """\
with open("log.csv", "w") as file:
    file.write("epoch,loss\\n")
for epoch in range(4):
    total = 0.0
    for batch, (x, y) in enumerate(loader):
        loss = step(model, optimizer, x, y)
        total += loss
        log(epoch, batch, loss)
    with open("log.csv", "a") as file:
        file.write(f"{epoch},{total!r}\\n")
    print("epoch", epoch, "done")
"""
    + _END,
    "csv_held_open": _BEGIN
    + """\
file = open("log.csv", "w", newline="")
writer = csv.writer(file)
writer.writerow(["epoch", "batch", "loss"])
for epoch in range(4):
    for batch, (x, y) in enumerate(loader):
        loss = step(model, optimizer, x, y)
        writer.writerow([epoch, batch, loss])
        log(epoch, batch, loss)
    file.flush()
    print("epoch", epoch, "done")
file.close()
"""
    + _END,
    "csv_held_open_dict_writer": _BEGIN
    + """\
with open("log.csv", "w", newline="", buffering=1) as file:
    writer = csv.DictWriter(file, ["epoch", "batch", "loss"])
    writer.writeheader()
    for epoch in range(3):
        for batch, (x, y) in enumerate(loader):
            loss = step(model, optimizer, x, y)
            writer.writerow({"epoch": epoch, "batch": batch, "loss": loss})
            log(epoch, batch, loss)
"""
    + _END,
    "csv_opened_in_the_loop": _BEGIN
    + """\
for epoch in range(3):
    with open(f"epoch{epoch}.csv", "w") as file:
        for batch, (x, y) in enumerate(loader):
            loss = step(model, optimizer, x, y)
            print(batch, loss, file=file)
            log(epoch, batch, loss)
"""
    + _END,
    "csv_appended_per_batch": _BEGIN
    + """\
path = pathlib.Path("out")
path.mkdir(exist_ok=True)
for epoch in range(3):
    for batch, (x, y) in enumerate(loader):
        loss = step(model, optimizer, x, y)
        with (path / "log.txt").open("a") as file:
            file.write(f"{epoch} {batch} {loss!r}\\n")
        log(epoch, batch, loss)
"""
    + _END,
    "logging_module": _BEGIN
    + """\
logging.basicConfig(filename="train.log", level=logging.INFO, format="%(levelname)s %(message)s")
logger = logging.getLogger("train")
for epoch in range(3):
    for batch, (x, y) in enumerate(loader):
        loss = step(model, optimizer, x, y)
        logger.info("epoch %d batch %d loss %r", epoch, batch, loss)
        log(epoch, batch, loss)
    logger.warning("epoch %d done", epoch)
"""
    + _END,
    "logging_set_up_in_the_loop": _BEGIN
    + """\
def set_up(epoch):
    own = logging.getLogger("epochs")
    own.addHandler(logging.FileHandler(f"epoch{epoch}.log"))
    own.propagate = epoch != 1


logger = logging.getLogger("train")
logger.setLevel(logging.INFO)
for epoch in range(3):
    if epoch == 1:
        handler = logging.FileHandler("train.log")
        handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
        handler.set_name("file")
        logger.addHandler(handler)
    set_up(epoch)
    for batch, (x, y) in enumerate(loader):
        loss = step(model, optimizer, x, y)
        logging.getLogger("epochs").warning("batch %d", batch)
        if batch == 1:
            logging.warning("the first message configures the root logger")
        logger.info("epoch %d batch %d loss %r", epoch, batch, loss)
        log(epoch, batch, loss)
    names = [type(one).__name__ for one in logging.root.handlers + logger.handlers]
    print(names, [one.formatter._fmt for one in logger.handlers], list(logging._handlers))
"""
    + _END,
    "best_model_saved": _BEGIN
    + """\
held_out = DataLoader(Points(30, shake=False), batch_size=10)
best = float("inf")
for epoch in range(4):
    for batch, (x, y) in enumerate(loader):
        log(epoch, batch, step(model, optimizer, x, y))
    print("validating", epoch)
    score = evaluate(model, held_out)
    if score < best:
        best = score
        torch.save(model.state_dict(), "best.pt")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, "last.pt")
    torch.save(model.state_dict(), f"epoch{epoch}.pt")
model.load_state_dict(torch.load("best.pt"))
save(model=model, optimizer=optimizer, best=best)
""",
    "numpy_and_json_saved": _BEGIN
    + """\
import json

history = {"loss": [], "epoch": []}
for epoch in range(3):
    for batch, (x, y) in enumerate(loader):
        loss = step(model, optimizer, x, y)
        history["loss"].append(loss)
        log(epoch, batch, loss)
    history["epoch"].append(epoch)
    np.save("losses.npy", np.array(history["loss"]))
    with open("history.json", "w") as file:
        json.dump(history, file)
"""
    + _END,
    "own_checkpoints_rotated": _BEGIN
    + """\
kept = collections.deque()
for epoch in range(4):
    for batch, (x, y) in enumerate(loader):
        log(epoch, batch, step(model, optimizer, x, y))
    name = f"model{epoch}.pt"
    torch.save(model.state_dict(), name)
    kept.append(name)
    if len(kept) > 2:
        os.remove(kept.popleft())
    os.replace(name, name + ".done")
    os.rename(name + ".done", name)
"""
    + _END,
    "resumes_by_itself": _BEGIN
    + """\
start = 0
if os.path.exists("own.pt"):
    own = torch.load("own.pt")
    model.load_state_dict(own["model"])
    optimizer.load_state_dict(own["optimizer"])
    start = own["epoch"] + 1
for epoch in range(start, 4):
    for batch, (x, y) in enumerate(loader):
        log(epoch, batch, step(model, optimizer, x, y))
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, "own.pt")
"""
    + _END,
    "output_folder_must_be_new": """\
out = pathlib.Path("results")
out.mkdir()
(out / "config.txt").write_text("lr 0.01\\n")
"""
    + _BEGIN
    + """\
for epoch in range(3):
    for batch, (x, y) in enumerate(loader):
        log(epoch, batch, step(model, optimizer, x, y))
    torch.save(model, out / "model.pt")
"""
    + _END,
    "memmap_written": _BEGIN
    + """\
losses = np.memmap("losses.bin", dtype=np.float64, mode="w+", shape=(3, 12))
for epoch in range(3):
    for batch, (x, y) in enumerate(loader):
        losses[epoch, batch] += step(model, optimizer, x, y)
        log(epoch, batch, float(losses[epoch, batch]))
losses.flush()
"""
    + _END,
    "lines_of_open_files": _BEGIN
    + """\
import csv

with open("train.csv", "w") as file:
    file.write("a,b,c,d,e,f,y\\n")
    file.writelines(f"{n % 7},{n % 5 / 4},{n % 3},{n % 11 / 9},{n % 4},1.5,{n % 2}\\n" for n in range(1600))
for epoch in range(2):
    rows = []
    with open("train.csv", newline="") as file:
        reader = csv.reader(file)
        next(reader)
        for batch, row in enumerate(reader):
            rows.append([float(value) for value in row])
            if len(rows) == 100:
                table = torch.tensor(rows)
                log(epoch, batch, step(model, optimizer, table[:, :6], table[:, 6].long()))
                rows.clear()
save(model=model, optimizer=optimizer)
rows = []
with open("train.csv") as file:
    file.readline()
    for line in file:
        rows.append([float(value) for value in line.split(",")])
        if len(rows) == 100:
            table = torch.tensor(rows)
            log(2, int(sum(map(sum, rows))), step(model, optimizer, table[:, :6], table[:, 6].long()))
            rows.clear()
"""
    + _END,
    "newest_checkpoints_kept": _BEGIN
    + """\
import shutil

out = pathlib.Path("out")
if out.exists():
    raise SystemExit("out exists; choose another folder")
out.mkdir()
(out / "config.json").write_text('{"lr": 0.01}')
steps = 0
for epoch in range(3):
    for batch, (x, y) in enumerate(loader):
        log(epoch, batch, step(model, optimizer, x, y))
        steps += 1
        if steps % 3 == 0:
            unfinished, place = out / "tmp", out / f"checkpoint-{steps}"
            unfinished.mkdir()
            torch.save(model.state_dict(), unfinished / "model.pt")
            torch.save(optimizer.state_dict(), unfinished / "optimizer.pt")
            unfinished.rename(place)
            (out / "latest").unlink(missing_ok=True)
            (out / "latest").symlink_to(place.name)
            for old in sorted(out.glob("checkpoint-*"), key=lambda one: int(one.name[11:]))[:-2]:
                shutil.rmtree(old)
"""
    + _END,
    "log_rotated": _BEGIN
    + """\
from logging.handlers import RotatingFileHandler

logger = logging.getLogger("train")
logger.addHandler(RotatingFileHandler("train.log", maxBytes=200, backupCount=2))
logger.setLevel(logging.INFO)
for epoch in range(3):
    for batch, (x, y) in enumerate(loader):
        loss = step(model, optimizer, x, y)
        logger.info("epoch %d batch %d loss %r", epoch, batch, loss)
        log(epoch, batch, loss)
"""
    + _END,
    "history_read_back": _BEGIN
    + """\
import json

import h5py

for epoch in range(3):
    for batch, (x, y) in enumerate(loader):
        loss = step(model, optimizer, x, y)
        log(epoch, batch, loss)
        history = json.load(open("history.json")) if os.path.exists("history.json") else []
        history.append(loss)
        with open("history.tmp", "w") as file:
            json.dump(history, file)
        os.replace("history.tmp", "history.json")
        with h5py.File("losses.h5", "a") as file:
            file[f"{epoch}/{batch}"] = loss
    print("epoch", epoch, len(history))
"""
    + _END,
    "csv_writer_made_in_the_loop": _BEGIN
    + """\
class CsvLog:
    def __init__(self, name):
        self.file, self.writer = open(name, "w", newline=""), None

    def __call__(self, **row):
        if self.writer is None:
            self.writer = csv.DictWriter(self.file, list(row), delimiter=";")
            self.writer.writeheader()
        self.writer.writerow(row)
        self.file.flush()


write, others = CsvLog("log.csv"), {}
for epoch in range(3):
    if epoch == 1:
        others["plain"] = csv.writer(open("plain.csv", "w", newline=""), quoting=csv.QUOTE_ALL)
    for batch, (x, y) in enumerate(loader):
        loss = step(model, optimizer, x, y)
        log(epoch, batch, loss)
        write(epoch=epoch, batch=batch, loss=loss)
        for one in others.values():
            one.writerow([epoch, batch])
"""
    + _END,
}
