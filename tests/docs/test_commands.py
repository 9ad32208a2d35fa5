"""Every command line in the pages' `console` blocks runs, and prints what the page shows.

In a page a fence with a title is a file, and a `console` fence has commands, each behind `$ `; what stands below a command it prints, among
other lines, with `…` for whatever is different each time. `# status 137` behind a command is its exit status; else it is 0.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.resume.harness import environment

DOCS = Path(__file__).parents[2] / "docs"
_FENCE = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_STATUS = re.compile(r"\s+# status (\d+)$")


def fences(page):
    """Language, title and text of each."""
    return _FENCE.findall(page.read_text(encoding="utf-8"))


def commands(text):
    """Each command with the lines that are shown below it."""
    found = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif line.strip():
            found[-1][1].append(line)
    return found


PAGES = [page for page in sorted(DOCS.rglob("*.md")) if any(language == "console" for language, _, _ in fences(page))]


def test_there_are_pages_with_commands():
    assert {"tutorial/first_run.md", "reference/configuration.md"} <= {str(page.relative_to(DOCS)) for page in PAGES}


@pytest.mark.full
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_the_commands_of_a_page_run_and_print_what_it_shows(page, tmp_path):
    found = environment()
    found["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{found['PATH']}"
    (tmp_path / "train.py").write_text("print('a script of the reader')\n")
    for language, title, text in fences(page):
        if title:
            (tmp_path / title).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / title).write_text(text)
        for command, shown in commands(text) if language == "console" else ():
            status = int(match[1]) if (match := _STATUS.search(command)) else 0
            done = subprocess.run(
                ["bash", "-c", _STATUS.sub("", command)],
                cwd=tmp_path,
                env=found,
                capture_output=True,
                text=True,
                check=False,
            )
            said = done.stdout + done.stderr
            left = 128 - done.returncode if done.returncode < 0 else done.returncode
            assert left == status, f"{command}\n{said}"
            for line in shown:
                pattern = ".*".join(map(re.escape, line.split("…")))
                assert re.search(f"^{pattern}$", said, re.MULTILINE), f"{command}\nshows: {line}\nsaid:\n{said}"
