"""Commands about one run name the runs that are there to whoever has named none."""

import os
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from detrain.cli.files import RunFolder, run_argument


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Three runs below `.detrain` of the working folder, of which `second` has trained last."""
    for seconds, name in enumerate(("first", "third", "second")):
        path = tmp_path / ".detrain" / name
        path.mkdir(parents=True)
        (path / "run.json").write_text("{}", encoding="utf-8")
        (path / "ledger").touch()
        os.utime(path / "ledger", (seconds, seconds))
        os.utime(path, (-seconds, -seconds))  # a proof was written there
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)


NAMED = "; runs here: .detrain/second, .detrain/third, .detrain/first"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], f"Invalid value for 'DIR': there is no folder nowhere{NAMED}"),
        (["empty"], f"Invalid value for 'DIR': empty is no run directory{NAMED}"),
        ([".detrain"], f"Invalid value for 'DIR': .detrain is no run directory{NAMED}"),
        ([], f"Missing argument 'DIR'. Which of the {NAMED.removeprefix('; ')}"),
    ],
)
@pytest.mark.usefixtures("runs")
def test_runs_that_are_there_are_named(words, said):
    with pytest.raises(click.ClickException) as caught:
        _take.main(words, standalone_mode=False)
    assert caught.value.format_message() == said


@pytest.mark.usefixtures("runs")
def test_a_run_is_taken():
    assert CliRunner().invoke(_take, [".detrain/first"]).output == ".detrain/first\n"


def test_the_only_run_is_taken_where_none_is_named(tmp_path, monkeypatch):
    path = tmp_path / ".detrain" / "train-lr-0.1-9c1b7d30"
    path.mkdir(parents=True)
    (path / "run.json").write_text("{}", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(_take, []).output == ".detrain/train-lr-0.1-9c1b7d30\n"


def test_of_many_runs_the_latest_are_named(tmp_path, monkeypatch):
    for number in range(7):
        path = tmp_path / f"run{number}"
        path.mkdir()
        (path / "run.json").write_text("{}", encoding="utf-8")
        os.utime(path, (number, number))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(click.BadParameter, match=r"runs here: run6, run5, run4, run3, run2, …$"):
        RunFolder().convert("nowhere", None, None)


def test_nothing_is_named_where_there_is_no_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(click.BadParameter, match=r"there is no folder nowhere$"):
        RunFolder().convert("nowhere", None, None)


@click.command()
@run_argument
def _take(folder: Path) -> None:
    click.echo(str(folder))
