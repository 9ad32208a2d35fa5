"""What `detrain run` is told by its rarer options."""

import shutil
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from detrain.cli import cli
from detrain.cli.remote_runs import prepare
from detrain.cli.requests import hint_at
from detrain.cli.run import run as command
from detrain.errors import UsageError
from tests.once import once

from .conftest import call

LOOP = """\
import decimal, os, torch
torch.manual_seed(0)
model = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
log, context, number = open("log.csv", "a"), decimal.Context(prec=1), 0
for epoch in range(3):
    for x in torch.ones(3, 2, 2):
        opt.zero_grad()
        model(x).sum().backward()
        opt.step()
        number += 1
        context.prec += 1
        print(epoch, number, file=log, flush=True)
        if number == int(os.environ.get("DIE_AT", "0")):
            os.kill(os.getpid(), 9)
print(context.divide(1, 3), "weight", model.weight.tolist())
"""
#: What the log holds of batches 1 to 9.
WHOLE = "".join(f"{batch // 3} {batch + 1}\n" for batch in range(9))


@pytest.fixture
def run(detrain, tmp_path):
    (tmp_path / "train.py").write_text(LOOP)
    return lambda *words, **env: detrain("run", "--every", "epoch", *words, "train.py", **env)


@pytest.fixture
def expected(tmp_path_factory):
    """What an uninterrupted run prints."""

    def make():
        folder = tmp_path_factory.mktemp("whole")
        (folder / "train.py").write_text(LOOP)
        said = call("run", "--every", "epoch", "train.py", folder=folder)
        assert (folder / "log.csv").read_text() == WHOLE, said.err
        return said.out

    return once(tmp_path_factory, LOOP, make)


def test_pickled_leaf_is_resumed_unless_the_user_refuses(run, detrain, expected):
    assert run(DIE_AT="5").status == -9
    listed = detrain("inspect", ".detrain/train/checkpoint_1_0.h5").out.splitlines()
    assert [line.split()[0] for line in listed if line.endswith("pickled")] == ["train.context"]
    said = run("--no-pickle")
    assert (said.status, said.out) == (2, "")
    assert "train.context (decimal:Context) is a pickled leaf, which --no-pickle refuses" in said.err
    assert (run().status, run("--ckpt-dir", "again").out) == (0, expected)


def test_files_go_back_with_the_checkpoint(run, expected, tmp_path):
    assert run(DIE_AT="5").status == -9
    assert run().out == expected
    assert (tmp_path / "log.csv").read_text() == WHOLE


def test_files_are_left_as_they_are_when_the_user_asks_for_it(run, expected, tmp_path):
    assert run("--leave-files", DIE_AT="5").status == -9
    assert run("--leave-files").out == expected
    lines = WHOLE.splitlines(keepends=True)
    assert (tmp_path / "log.csv").read_text() == "".join(lines[:5] + lines[3:])


def test_run_whose_files_were_not_followed_cannot_begin_to(run, expected):
    assert run("--leave-files", DIE_AT="5").status == -9
    said = run()
    assert (said.status, said.out) == (2, "")
    assert "holds a run of another command: --leave-files was given, is not now" in said.err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("train.py --every epoch", "`--every` stands behind the script's name, so it went to the script; detrain's options stand before "
            "it: detrain run --every … train.py"),
        ("train.py --fresh --keep=3", "`--fresh` and `--keep` stand behind the script's name, so they went to the script; "
            "detrain's options stand before it: detrain run --fresh --keep … train.py"),
        ("-m pkg.train --seed 1", "`--seed` stands behind the module's name, so it went to the module; detrain's options stand before it: "
            "detrain run --seed … -m pkg.train"),
        ("train.py --lr 1 every", ""),
        ("train.py -- --every epoch", ""),
        ("train.py", ""),
    ],
)  # fmt: skip
def test_hint_at_options_behind_the_scripts_name_is_made_of_clicks_parameters(words, expected):
    script, *arguments = words.split()
    module, arguments = (arguments[0], arguments[1:]) if script == "-m" else (None, arguments)
    assert hint_at(command, module, script, arguments) == expected


def test_a_script_in_place_of_a_command_is_told_of_run(tmp_path):
    script = tmp_path / "train.py"
    assert f"No such command '{script}'" in CliRunner().invoke(cli, [str(script)]).output
    script.write_text("")
    told = CliRunner().invoke(cli, [str(script)])
    assert told.exit_code == 2
    assert f"there is no command {script}: `detrain run {script}` runs a script" in told.output


@pytest.mark.parametrize("url", ["file:///store/{nam}", "file:///store/{name}/{}"])
def test_what_a_url_cannot_have_filled_in_is_refused(tmp_path, url):
    request = SimpleNamespace(ckpt_dir=str(tmp_path / "train"), remote=url)
    with pytest.raises(UsageError, match=r"stands for nothing; \{name\} stands for the run directory's name"):
        prepare(request)


def test_option_behind_the_scripts_name_is_explained_where_the_script_does_not_know_it(detrain, tmp_path):
    (tmp_path / "train.py").write_text(
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--seed')\np.parse_args()\n"
    )
    said = detrain("run", "train.py", "--every", "epoch")
    assert said.status == 2
    assert (
        "error: unrecognized arguments: --every epoch\ndetrain: `--every` stands behind the script's name" in said.err
    )
    said = detrain("run", "train.py", "--seed", "3")
    assert (said.status, "behind" in said.err) == (0, False)
    said = detrain("trace", "train.py", "--vary", "x")
    assert said.status == 2
    assert "detrain: `--vary` stands behind the script's name" in said.err


INEXACT = LOOP.replace("import decimal", "import lzma, decimal").replace(
    "for epoch", "tool = lzma.LZMACompressor()\nfor epoch"
).replace("        number += 1\n", "        number += 1\n        tool.compress(b'x')\n")  # fmt: skip


def test_where_a_resume_cannot_be_exact_the_user_decides(run, detrain, expected, tmp_path):
    (tmp_path / "train.py").write_text(INEXACT)
    said = run(DIE_AT="5")
    assert said.status == -9
    assert "train.tool (_lzma:LZMACompressor)" in said.err
    assert (
        "first checkpoint: checkpoint_1_0.h5; an object is not in it (see above), so that a resume is refused"
        in said.err
    )
    refused = run()
    assert (refused.status, refused.out) == (2, "")
    assert "may not be exact, because these are not in the checkpoint: train.tool" in refused.err
    assert "--on-inexact does either by itself" in refused.err
    log = (tmp_path / "log.csv").read_text()

    shutil.copytree(tmp_path / ".detrain", tmp_path / "before")
    trusted = run("--on-inexact", "trust")
    assert (trusted.status, trusted.out) == (0, expected)
    assert "train.tool" in trusted.err
    assert "continuing anyway [inexact]" in trusted.err

    shutil.rmtree(tmp_path / ".detrain")
    (tmp_path / "before").rename(tmp_path / ".detrain")
    (tmp_path / "log.csv").write_text(log)
    restarted = run(DETRAIN_ON_INEXACT="restart")
    assert (restarted.status, restarted.out) == (0, expected)
    assert (tmp_path / "log.csv").read_text() == WHOLE
    assert "starting over, as --on-inexact restart says: this resume may not be exact" in restarted.err
    assert "The 3 batches up to checkpoint_1_0.h5 are run again" in restarted.err
    assert (tmp_path / ".detrain" / "train.old1" / "checkpoint_1_0.h5").exists()
    assert run().err.count("there is nothing left to do") == 1


def test_another_source_starts_over_if_the_user_wants_that(run, expected, tmp_path):
    assert run(DIE_AT="5").status == -9
    (tmp_path / "train.py").write_text(LOOP.replace('"weight"', '"other"'))
    assert run().status == 2
    said = run("--on-inexact", "restart")
    assert (said.status, said.out) == (0, expected.replace("weight", "other"))
    assert "starting over, as --on-inexact restart says: the source has changed since checkpoint_1_0.h5" in said.err
    assert (tmp_path / "log.csv").read_text() == WHOLE


def test_a_checkpoint_that_is_named_is_not_given_up(run, tmp_path):
    assert run(DIE_AT="5").status == -9
    (tmp_path / "train.py").write_text(LOOP.replace('"weight"', '"other"'))
    said = run("--on-inexact", "restart", "--from", "checkpoint_1_0.h5")
    assert (said.status, said.out) == (2, "")
    assert "the source has changed" in said.err
    assert not (tmp_path / ".detrain" / "train.old1").exists()
