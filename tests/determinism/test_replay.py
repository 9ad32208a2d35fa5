"""`detrain replay`: epochs of a run again, with lines added to the script."""

from __future__ import annotations

import json

import pytest

from tests.determinism.test_verify import everything_in

pytestmark = pytest.mark.usefixtures("sandbox")

TRAINING = """
import os
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.5)
loader = DataLoader(TensorDataset(torch.randn(40, 6), torch.randn(40, 1)), batch_size=4, shuffle=True)


def step(x, y):
    optimizer.zero_grad()
    loss = (model(x) - y).square().mean()
    loss.backward()
    optimizer.step()
    return loss


log = open("log.txt", "a")
for epoch in range(6):
    total = 0.0
    for batch, (x, y) in enumerate(loader):
        loss = step(x, y)
        total += loss.item()
        log.write(f"{epoch} {batch} {loss.item()}\\n")
        if epoch == 3 and batch == 4 and os.environ.get("KILL"):
            os.kill(os.getpid(), 9)
    print("epoch", epoch, total)
torch.save(model.state_dict(), "model.pt")
"""
#: Lines above the loops, an import, a function, a hook, logging, attributes, and lines within the loops.
ADDED = (
    (
        "import os\n",
        "import os\nimport json\nimport logging\n\nlogging.basicConfig(level='INFO', format='%(message)s')\n",
    ),
    ("def step(", "def norm():\n    return sum(p.grad.norm().item() for p in model.parameters())\n\n\ndef step("),
    (
        "log = open",
        "batch = -1\nmodel[0].register_forward_hook(lambda *_: print('hook', batch))\nmodel.kept = []\nlog = open",
    ),
    ("    total = 0.0\n", "    total, losses = 0.0, []\n    print('begins', epoch)\n"),
    (
        "        total +=",
        "        print('norm', json.dumps(norm()))\n        losses.append(loss.item())\n        total +=",
    ),
    (
        '    print("epoch',
        "    model.kept.append(epoch)\n    logging.info('sum %s of %d', sum(losses) == total, len(losses))\n    print(\"epoch",
    ),
)


def with_lines(*pairs: tuple[str, str]) -> str:
    text = TRAINING
    for old, new in pairs:
        assert text.count(old) == 1
        text = text.replace(old, new)
    return text


def run_once_killed(one) -> str:
    one.attempt("run", "--every", "7batches", "--keep", "99", status=-9, KILL="1")
    printed: str = one.attempt("run", "--every", "7batches", "--keep", "99")
    return printed


def test_epochs_are_shown_with_the_added_lines_and_proved(script) -> None:
    one = script(TRAINING)
    printed = run_once_killed(one)
    (one.folder / "patched.py").write_text(with_lines(*ADDED))
    before = everything_in(one.folder)
    shown = one.command("replay", "run", "--epochs", "3-4", "--with", "patched.py", "--jobs", "2").splitlines()
    assert everything_in(one.folder) == before
    for epoch in (3, 4):
        begin, end = (
            shown.index(f"begins {epoch}"),
            shown.index(next(x for x in shown if x.startswith(f"epoch {epoch}"))),
        )
        assert [line.split()[0] for line in shown[begin + 1 : end]] == ["hook", "norm"] * 10
        assert shown[end] in printed.splitlines()
    assert len(shown) == 2 * 22
    assert one.errors.count("sum True of 10") == 2
    assert "epoch 3, from checkpoint_3_0.h5, up to checkpoint_4_0.h5: same" in one.said
    assert "have the same bits as in the run" in one.said
    assert "2 processes at a time; in the run these 20 batches took" in one.said


@pytest.mark.full
def test_without_a_patch_the_output_of_the_run_comes_again(script) -> None:
    one = script(TRAINING)
    run_once_killed(one)
    one.command("replay", "run", "--epochs", "0,2-", "--whole", "-o", "shown")
    texts = {path.name: path.read_text() for path in (one.folder / "shown").iterdir()}
    assert sorted(texts) == [f"epoch_{epoch}.out" for epoch in (0, 2, 3, 4, 5)]
    assert all(text.startswith(f"epoch {name[6]} ") and text.count("\n") == 1 for name, text in texts.items())
    assert "epochs 2 to 5, from checkpoint_2_0.h5, up to checkpoint_6_0.h5: same" in one.said


@pytest.mark.full
def test_batches_are_shown(script) -> None:
    one = script(TRAINING)
    run_once_killed(one)
    (one.folder / "patched.py").write_text(with_lines(*ADDED))
    shown = one.command("replay", "run", "--batches", "33-35", "--with", "patched.py", "--json")
    found = json.loads(shown)
    (part,) = found["segments"]
    assert [line.split()[0] for line in part["shown"][0]["out"].splitlines()] == ["hook", "norm"] * 3
    assert (found["same"], part["result"], part["num_compared"]) == (True, "same", 7)


@pytest.mark.full
def test_another_training_is_found_out_and_its_first_batch_named(script) -> None:
    one = script(TRAINING)
    run_once_killed(one)
    other = (
        "    total = 0.0\n",
        "    total = 0.0\n    optimizer.param_groups[0]['lr'] = 0.03 if epoch == 4 else 0.02\n",
    )
    (one.folder / "patched.py").write_text(with_lines(other))
    one.command("replay", "run", "--epochs", "3-5", "--with", "patched.py", status=1)
    assert "epoch 3, from checkpoint_3_0.h5, up to checkpoint_4_0.h5: same" in one.said
    assert (
        "epoch 4: after batch 41 of the run (epoch 4, batch 1), script.model['0'].weight is not what the run had there"
        in one.said
    )
    assert "epoch 5, from checkpoint_5_0.h5, up to checkpoint_6_0.h5: same" in one.said
    # In set-up code it counts from the beginning only, and that is said.
    (one.folder / "patched.py").write_text(with_lines(("lr=0.02", "lr=0.03")))
    one.command("replay", "run", "--epochs", "3", "--with", "patched.py")
    assert "patched.py changes or leaves out line 8 of script.py" in one.said
    one.command("replay", "run", "--epochs", "0", "--with", "patched.py", status=1)
    assert "epoch 0: after batch 2 of the run" in one.said


@pytest.mark.full
def test_what_cannot_be_replayed_is_said(script) -> None:
    one = script(TRAINING)
    run_once_killed(one)
    line = TRAINING.splitlines().index("for epoch in range(6):") + 1
    for (old, new), said in (
        (("for epoch in range(6)", "for epoch in range(7)"), f"script.py:{line} (for epoch in range(6))"),
        (
            ("        loss = step", "        print(undefined)\n        loss = step"),
            "NameError: name 'undefined' is not defined",
        ),
    ):
        (one.folder / "patched.py").write_text(with_lines((old, new)))
        one.command("replay", "run", "--epochs", "3", "--with", "patched.py", status=2)
        assert said in one.said
    for words, said in (
        (("--epochs", "6"), "the run came to epoch 5"),
        ((), "give either --epochs or --batches"),
        (("--epochs", "3", "--with", "nothing.py=patched.py"), "no source of the run is meant by nothing.py"),
    ):
        one.command("replay", "run", *words, status=2)
        assert said in one.said
    one.path.write_text(with_lines(*ADDED))
    one.command("replay", "run", "--epochs", "3", status=2)
    assert "the source has changed since the run" in one.said


@pytest.mark.full
def test_a_run_that_broke_off_is_shown_to_the_end_of_its_epoch(script) -> None:
    one = script(TRAINING)
    one.attempt("run", "--every", "7batches", "--keep", "99", status=-9, KILL="1")
    shown = one.command("replay", "run", "--epochs", "3")
    assert shown.startswith("epoch 3 ")
    assert "note: the ledger ends within it: behind batch 34 of the run nothing could be compared" in one.said


HELPER = """
import torch


class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.Adam(model.parameters())

    def fit(self, data):
        for epoch in range(4):
            for x in self.batches(data):
                self.optimizer.zero_grad()
                loss = self.model(x).square().mean()
                loss.backward()
                self.optimizer.step()
            print("epoch", epoch)

    def batches(self, data):
        for number in torch.randperm(10).tolist():
            yield data[number]
"""
MAIN = """
import torch
from helper import Trainer


def main():
    torch.manual_seed(0)
    Trainer(torch.nn.Linear(3, 1)).fit(torch.randn(10, 4, 3))


main()
"""


@pytest.mark.full
def test_modules_of_the_script_can_be_replaced(script) -> None:
    one = script(MAIN)
    (one.folder / "helper.py").write_text(HELPER)
    one.attempt("run", "--every", "12batches", "--keep", "99")
    text = HELPER.replace("        self.model = model\n", "        self.model = model\n        self.sums = []\n")
    text = text.replace(
        "            print(", "            self.sums.append(epoch)\n            print(self.sums)\n            print("
    )
    (one.folder / "other.py").write_text(
        text.replace(
            "                loss.backward()", "                print(loss.item())\n                loss.backward()"
        )
    )
    shown = one.command("replay", "run", "--epochs", "2", "--with", "helper.py=other.py").splitlines()
    assert shown[10:] == ["[2]", "epoch 2"]
    # A generator that had begun at the checkpoint cannot be another one.
    generator = HELPER.replace("            yield", "            print(number)\n            yield")
    (one.folder / "other.py").write_text(generator)
    one.command("replay", "run", "--batches", "24-25", "--with", "helper.py=other.py", status=2)
    assert "the code of the generator Trainer.batches has changed" in one.said
    shown = one.command("replay", "run", "--epochs", "2", "--with", "helper.py=other.py")
    assert len(shown.splitlines()) == 11
