"""What `detrain run` itself says and refuses."""

from collections.abc import Callable
from typing import Any

import pytest

Run = Callable[..., Any]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--bogus", "script.py"], "--bogus"),
        (["--ever", "epoch", "script.py"], "--ever"),  # no abbreviations
        (["--keep", "many", "script.py"], "many"),
        (["--every", "sometimes", "script.py"], "sometimes"),
        (["--ckpt-dir"], "--ckpt-dir"),
        (["no_such_file.py"], "no_such_file.py"),
        (["-m", "no_such_module"], "no_such_module"),
        ([], ""),
    ],
    ids=" ".join,
)
def test_a_wrong_command_line_is_refused(detrain_run: Run, words: list[str], says: str) -> None:
    outcome = detrain_run(*words, script="print('ran')")
    assert outcome.status == 2
    assert outcome.stdout == ""
    assert any(line.startswith("detrain: error:") for line in outcome.stderr.splitlines())
    assert says in outcome.stderr
    assert "Traceback" not in outcome.stderr
    assert list(outcome.files) == ["script.py"]  # and nothing was left behind


def test_the_run_directory_is_made_beside_the_caller_by_default(detrain_run: Run) -> None:
    outcome = detrain_run("script.py", script="print('ran')")
    assert (outcome.status, outcome.stdout) == (0, "ran\n")
    assert {name.split("/")[0] for name in outcome.files} <= {"script.py", ".detrain"}


def test_the_run_directory_may_come_from_the_environment(detrain_run: Run) -> None:
    outcome = detrain_run("script.py", script="import os; print(os.getcwd())", env={"CKPT_DIR": "elsewhere"})
    assert outcome.status == 0, outcome.stderr
    assert {name.split("/")[0] for name in outcome.files} <= {"script.py", "elsewhere"}


def test_options_after_the_script_are_not_detrains(detrain_run: Run) -> None:
    outcome = detrain_run(
        "--ckpt-dir", "d", "script.py", "--every", "3", "--bogus", script="import sys; print(sys.argv)"
    )
    assert (outcome.status, outcome.stdout) == (0, "['script.py', '--every', '3', '--bogus']\n"), outcome.stderr


def test_all_that_detrain_says_is_marked_as_its_own(detrain_run: Run) -> None:
    outcome = detrain_run("--ckpt-dir", "d", "script.py", script="import sys; print('mine', file=sys.stderr)")
    theirs = [line for line in outcome.stderr.splitlines() if not line.startswith("detrain:")]
    assert (outcome.status, theirs) == (0, ["mine"])


def test_the_help_names_every_option(detrain_run: Run) -> None:
    outcome = detrain_run("--help")
    assert outcome.status == 0
    for option in (
        "--ckpt-dir",
        "--every",
        "--keep",
        "--seed",
        "--fresh",
        "--from",
        "--nondeterministic",
        "--no-pickle",
        "--leave-files",
        "--trust-changes",
        "--keep-trained",
    ):
        assert option in outcome.stdout
