"""`detrain report`: the page of a run that was killed and resumed, opened in a real browser."""

from __future__ import annotations

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from .conftest import call

pytest.importorskip("plotly", reason="the report is drawn with plotly: pip install detrain[report]")

#: Prints a metric in each batch; killed in the second epoch where DIE is set.
TRAINING = """
import os
import torch
torch.manual_seed(0)
model = torch.nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.05)
data = torch.randn(10, 4, 6)
print("step,penalty", file=open("log.csv", "w"))
for epoch in range(3):
    for batch in range(10):
        optimizer.zero_grad()
        loss = (model(data[batch]) - 1).square().mean()
        loss.backward()
        optimizer.step()
        print(f"epoch {epoch} batch {batch} score: {1 / (1 + loss.item()):.4f} <script>alert(1)</script> rate=0.05", flush=True)
        with open("log.csv", "a") as log:
            print(epoch * 10 + batch, loss.item(), sep=",", file=log)
        if epoch == 1 and batch == 7 and os.environ.get("DIE"):
            os.kill(os.getpid(), 9)
"""
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
#: A new profile, nothing looked up anywhere; as root it has no sandbox of its own.
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=10000",
)  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory."""
    folder = tmp_path_factory.mktemp("report")
    (folder / "train.py").write_text(TRAINING, encoding="utf-8")
    words = ("run", "--ckpt-dir", "run", "--every", "4batches", "train.py", "<tag>")
    assert call(*words, folder=folder, DIE="1", DETRAIN_LEDGER_BUDGET="1").status == -9
    done = call(*words, folder=folder, DETRAIN_LEDGER_BUDGET="1")
    assert done.status == 0, done.err
    # What the script printed went where it was to go, too.
    assert done.out.count("score") == done.out.count("\n") > 10
    return folder / "run"


class Page(HTMLParser):
    """What a page would load, and its words outside scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.words = ""
        self._is_text = True
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._is_text = tag not in ("script", "style")
        self.loaded += [
            value or "" for name, value in attrs if name in ("src", "href") and not (value or "").startswith("data:")
        ]

    def handle_endtag(self, tag: str) -> None:
        self._is_text = True

    def handle_data(self, data: str) -> None:
        self.words += f"{data} " if self._is_text else ""


def test_the_page_says_what_happened_and_loads_nothing(run: Path) -> None:
    assert call("report", "run", folder=run.parent).err == "detrain: wrote run/report.html\n"
    page = Page((run / "report.html").read_text(encoding="utf-8"))
    assert page.loaded == []
    words = " ".join(page.words.split())
    assert "train.py <tag>" in words
    assert "30 batches 2 attempts 3 batches done again after kills" in words
    assert "rate 0.05" in words  # never changes, so it is said and not drawn
    assert "not verified" in words


def test_a_browser_draws_every_picture_without_a_network(run: Path, tmp_path: Path) -> None:
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip(f"no browser is installed: none of {', '.join(BROWSERS)}")
    assert call("report", "run", "-o", str(tmp_path / "page.html"), folder=run.parent).status == 0
    done = subprocess.run(
        [browser, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", f"file://{tmp_path / 'page.html'}"],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    drawn = done.stdout
    # The loss, the score, the column of the table, the run's life, what checkpoints cost and how large they are.
    titles = re.findall(r'class="[xy]title"[^>]*>([^<]+)<', drawn)
    assert {"loss", "score", "log.csv: penalty", "step", "batches", "time"} <= set(titles)
    assert drawn.count('class="figure"') == 5
    assert len(re.findall(r'<path class="js-line"[^>]* d="M[^"]{40}', drawn)) >= 4  # two curves, two attempts
    assert len(re.findall(r'<path class="point"', drawn)) >= 8  # checkpoints, in two pictures


def test_the_page_tells_what_auto_chose(tmp_path: Path) -> None:
    script = TRAINING.replace("print(f", "__import__('time').sleep(0.2); print(f")
    (tmp_path / "train.py").write_text(script, encoding="utf-8")
    assert call("run", "--ckpt-dir", "run", "train.py", folder=tmp_path).status == 0
    assert call("report", "run", folder=tmp_path).status == 0
    assert re.search(
        r"auto chose one every [\d.]+ s", " ".join(Page((tmp_path / "run" / "report.html").read_text()).words.split())
    )


def test_what_the_page_needs_is_said(run: Path, tmp_path: Path) -> None:
    said = call("report", ".", folder=tmp_path)
    assert (said.status, said.err) == (2, "detrain: error: . is no run directory\n")
    said = call("report", "run", "-o", "nowhere/page.html", folder=run.parent)
    assert said.status == 2
    assert "nowhere/page.html cannot be written" in said.err
