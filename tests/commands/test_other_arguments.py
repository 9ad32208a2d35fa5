"""`--trust-changes` with other arguments: the new values are taken, or what is ignored is named and refused."""

import json
import re
import shutil

import pytest

SCRIPT = """\
import argparse, os, torch

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=12)
parser.add_argument("--lr", type=float, default=0.01)
parser.add_argument("--step", type=int, default=0)
args = parser.parse_args()

def main():
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 3)
    opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(opt, args.step, 0.5) if args.step else None
    loader = torch.utils.data.DataLoader(torch.randn(12, 4), batch_size=4, shuffle=True)
    num = 0
    for epoch in range(args.epochs):
        for x in loader:
            num += 1
            opt.zero_grad()
            loss = model(x).pow(2).mean()
            loss.backward()
            if num == int(os.environ.get("HAND", "0")):
                opt.param_groups[0]["lr"] = 0.1
            opt.step()
            print("batch", num, loss.item(), opt.param_groups[0]["lr"], flush=True)
            if num == int(os.environ.get("DIE_AT", "0")):
                os.kill(os.getpid(), 9)
        if scheduler:
            scheduler.step()
    print("weight", model.weight.tolist())

main()
"""
OLD, NEW = ("--epochs", "12", "--lr", "0.01"), ("--epochs", "14", "--lr", "0.1")


@pytest.fixture
def run(detrain, tmp_path):
    """Runs the script with arguments, in a run directory."""
    (tmp_path / "train.py").write_text(SCRIPT)

    def start(directory, *words, options=(), every="1batches", **env):
        return detrain("run", "--ckpt-dir", directory, "--every", every, *options, "train.py", *words, **env)

    return start


def lines(said):
    return [line for line in said.out.splitlines() if line.startswith(("batch", "weight"))]


def latest(folder):
    record = json.loads((folder / "run.json").read_text())
    return record["arguments"], [(one["from"]["arguments"], one["to"]["arguments"]) for one in record["changes"]]


@pytest.mark.full
def test_a_killed_run_goes_on_to_the_new_end_at_the_new_rate(run, detrain, tmp_path):
    """In the middle of an epoch, so through two checkpoints; killed once more on the way, and given the same command again."""
    assert run("A", *OLD, DIE_AT="17").status == -9
    reference = run("R", "--epochs", "14", "--lr", "0.01", HAND="17")
    assert run("A", *NEW, options=["--trust-changes"], DIE_AT="18").status == -9
    again = run("A", *NEW)
    assert again.status == 0, again.err
    assert lines(again) == lines(reference)[-len(lines(again)) :]
    assert lines(again)[-2].split()[1::2] == ["42", "0.1"]
    assert latest(tmp_path / "A") == ([*NEW], [([*OLD], [*NEW])])
    assert "ledger" not in again.err  # what the first attempt has noted is of another run


@pytest.mark.full
def test_what_follows_the_new_arguments_is_said_and_verify_does_not_prove_the_rest(run, detrain):
    # Whole, as `verify` starts it.
    assert run("A", *OLD, every="epoch", is_whole=True, DIE_AT="17").status == -9
    said = run("A", *NEW, every="epoch", is_whole=True, options=["--trust-changes", "--keep", "20"])
    assert said.status == 0, said.err
    assert re.search(
        r"detrain: new arguments: 5 values follow them \(train.args.epochs 12 -> 14, train.args.lr 0.01 -> 0.1, "
        r"loops\[0\].iterator.stop 12 -> 14, .*train.main.opt.param_groups\[0\].lr 0.01 -> 0.1\)",
        said.err,
    )
    proved = detrain("verify", "A")
    assert proved.status == 1
    assert "segment 3 not all compared: the arguments were --epochs 12 --lr 0.01 up to checkpoint_5_0.h5" in proved.out
    assert proved.out.splitlines()[-1].startswith("not proved: 1 of ")


@pytest.mark.full
def test_a_rate_that_the_scheduler_has_changed_is_named_and_refused(run, tmp_path):
    step = ("--step", "2")
    assert run("A", *OLD, *step, DIE_AT="17").status == -9
    shutil.copytree(tmp_path / "A", tmp_path / "B")
    said = run("A", *NEW, *step, options=["--trust-changes"])
    assert (said.status, said.out) == (2, "")
    assert (
        "  train.main.opt.param_groups[0].lr: the old arguments made 0.01, the loop has changed it to 0.0025, the new ones make 0.1\n"
        in said.err
    )
    assert "Go on with the checkpoint's values for these with --keep-trained" in said.err
    again = run("A", *OLD, *step)
    assert again.status == 0, again.err
    assert lines(again) == lines(run("R", *OLD, *step))[-len(lines(again)) :]
    kept = run("B", *NEW, *step, options=["--trust-changes", "--keep-trained"])
    assert kept.status == 0, kept.err
    assert lines(kept)[0].endswith(" 0.0025")
    assert lines(kept)[-2].startswith("batch 42 ")
    assert re.search(
        r"the checkpoint's values are kept .*train.main.opt.param_groups\[0\].lr.*\[arguments-ignored\]", kept.err
    )


@pytest.mark.full
def test_a_run_that_has_ended_goes_on_to_a_later_end(run):
    assert run("A", *OLD).status == 0
    said = run("A", "--epochs", "14", "--lr", "0.01", options=["--trust-changes"])
    assert said.status == 0, said.err
    assert "from checkpoint_12_0.h5" in said.err
    assert lines(said) == lines(run("R", "--epochs", "14", "--lr", "0.01"))[36:]


@pytest.mark.full
def test_changed_source_and_arguments_are_refused_and_the_second_flag_says_what_it_ignores(run, tmp_path):
    assert run("A", *OLD, DIE_AT="17").status == -9
    script = tmp_path / "train.py"
    script.write_text(script.read_text() + "\n")
    said = run("A", *NEW, options=["--trust-changes"])
    assert (said.status, said.out) == (2, "")
    assert f"the source has changed as well ({script}); change one at a time" in said.err
    said = run("A", *NEW, options=["--trust-changes", "--keep-trained"])
    assert said.status == 0, said.err
    assert "The checkpoint's values are used for everything in it [arguments-ignored]" in said.err
    assert "What the checkpoint holds is used, also where set-up code now makes other values." in said.err
    assert lines(said)[-2].startswith("batch 36 ")
