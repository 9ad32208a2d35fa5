"""The pages build without a warning: every link within them leads somewhere, every command and function has its text."""

import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.full
def test_the_pages_build_without_a_warning(tmp_path):
    pytest.importorskip("sphinx_click", reason="the pages are built by Sphinx: pip install 'detrain-run[docs]'")
    for builder in ("html", "man"):
        command = [
            sys.executable,
            "-m",
            "sphinx",
            "-q",
            "-W",
            "--keep-going",
            "-b",
            builder,
            str(DOCS),
            str(tmp_path / builder),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
    commands = (tmp_path / "html" / "reference" / "commands.html").read_text(encoding="utf-8")
    assert "--time-limit" in commands
    assert ".SS run" in (tmp_path / "man" / "detrain.1").read_text(encoding="utf-8")
