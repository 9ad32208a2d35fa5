"""Options from files and from the environment: which goes before which, and what is refused."""

import json
import sys

import pytest

from detrain import cli


@pytest.fixture
def said(tmp_path, monkeypatch, capfd):
    """Runs a command in an empty folder, with these files; its status, standard output and standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DETRAIN_CONFIG", raising=False)

    def run(*words, **files):
        for name, text in files.items():
            (tmp_path / f"{name}.toml").write_text(text)
        (tmp_path / "train.py").write_text("")
        monkeypatch.setattr(sys, "argv", ["detrain", *words])
        status = cli.main()
        return status, *capfd.readouterr()

    return run


def options(said, *words, **files):
    """Option to value and source."""
    status, out, err = said("config", "--json", *words, **files)
    assert (status, err) == (0, "")
    return {one["option"]: (one["value"], one["source"]) for one in json.loads(out)["options"]}


def test_a_flag_goes_before_the_environment_that_before_the_file_and_the_file_before_the_default(said, monkeypatch):
    text = '[run]\nkeep = 4\nevery = "2epochs"\nseed = 9\nquiet = true\n[scripts."tr*.py"]\nseed = 7\n'
    monkeypatch.setenv("DETRAIN_EVERY", "3epochs")
    monkeypatch.setenv("DETRAIN_RUN_QUIET", "0")
    found = options(said, "train.py", detrain=text)
    assert found["--keep"] == (4, "detrain.toml [run]")
    assert found["--every"] == ("3epochs", "DETRAIN_EVERY")
    assert found["--quiet"] == (False, "DETRAIN_RUN_QUIET")
    assert found["--seed"] == (7, 'detrain.toml [scripts."tr*.py"]')
    assert found["--on-inexact"] == ("refuse", "default")
    assert options(said, "-m", "other")["--seed"] == (9, "detrain.toml [run]")


def test_the_table_of_a_project_counts_where_there_is_no_file_of_its_own(said, tmp_path, monkeypatch):
    shared = '[project]\nname = "x"\n[tool.detrain.run]\nkeep = 2\nckpt-dir = "runs/a"\n'
    (tmp_path / "below").mkdir()
    assert options(said, pyproject=shared)["--keep"] == (2, "pyproject.toml [tool.detrain.run]")
    assert options(said)["--ckpt-dir"][0] == str(tmp_path / "runs/a")
    monkeypatch.chdir(tmp_path / "below")
    assert options(said)["--keep"] == (2, "../pyproject.toml [tool.detrain.run]")
    (tmp_path / "below" / ".git").touch()  # another project
    assert options(said)["--keep"] == (3, "default")
    monkeypatch.chdir(tmp_path)
    assert options(said, detrain="[run]\nkeep = 1\n")["--keep"] == (1, "detrain.toml [run]")
    monkeypatch.setenv("DETRAIN_CONFIG", "")
    assert options(said)["--keep"] == (3, "default")
    monkeypatch.setenv("DETRAIN_CONFIG", "pyproject.toml")
    assert options(said)["--keep"] == (2, "pyproject.toml [tool.detrain.run]")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[run]\nevry = 1\n", "detrain.toml [run]: there is no option evry; did you mean every?"),
        ("[rnu]\nkeep = 1\n", "detrain.toml: there is no command rnu; did you mean run?"),
        ("[run]\nfresh = true\n", "detrain.toml [run]: there is no option fresh"),
        ("[run]\nkeep = 0\n", "Invalid value for '--keep': 0 is not in the range x>=1 (from detrain.toml [run])"),
        (
            '[run]\nevery = "30 bananas"\n',
            "30 bananas: expected epoch, 5epochs, epochs:3,6, 100batches, 30s, auto, 2% or never",
        ),
        ("every = 1\n", "detrain.toml: every is in no command's table; an option stands in one, as [run]"),
        ("[remat.pln]\n", "detrain.toml [remat]: there is no command pln; did you mean plan?"),
        ("run = 1\n", "detrain.toml: run is a table"),
        ("scripts = 1\n", "detrain.toml: scripts is a table of scripts"),
        ("[run\n", "detrain.toml: "),
    ],
)
def test_what_no_command_knows_is_refused_and_named(said, text, says):
    command = "remat" if "remat" in text else "config"
    status, out, err = said(command, *(["plan", "x.json"] if command == "remat" else []), detrain=text)
    assert (status, out) == (2, "")
    assert says in err


def test_a_bad_value_of_a_command_within_a_group_is_said_to_be_from_its_table(said):
    text = "[remat.plan]\ntime-limit = -1\n"
    status, _, err = said("remat", "plan", "--budget", "0.4", "--planner", "auto", "detrain.toml", detrain=text)
    assert status == 2
    assert err.endswith("-1.0 is not in the range x>0 (from detrain.toml [remat.plan])\n")


def test_options_of_other_commands(said):
    status, out, err = said("ls", ".", detrain="[ls]\njson = true\n")
    assert (status, json.loads(out), err) == (0, [], "")


def test_help_has_headings(said):
    status, out, _ = said("run", "--help")
    assert status == 0
    assert [line for line in out.splitlines() if line.endswith(":") and not line.startswith(" ")] == [
        "Checkpoints:", "Exactness:", "Schedulers:", "Several processes:", "Memory budget:", "Pipeline:", "Options:",
    ]  # fmt: skip
    assert "[SCRIPT]" not in out.partition("Checkpoints:")[2]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_what_makes_a_shell_complete(said, shell):
    status, out, _ = said("completion", shell)
    assert status == 0
    assert "_DETRAIN_COMPLETE" in out


def test_options_are_completed(said, capfd, monkeypatch):
    monkeypatch.setenv("_DETRAIN_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "detrain run --ke")
    monkeypatch.setenv("COMP_CWORD", "2")
    with pytest.raises(SystemExit):
        said()
    assert capfd.readouterr().out.split() == ["plain,--keep", "plain,--keep-trained"]
