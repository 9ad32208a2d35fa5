"""`detrain report`: the page of a run that was killed and resumed, opened in a real browser."""

from __future__ import annotations

import re
import shutil
import subprocess
from html import escape
from html.parser import HTMLParser
from pathlib import Path

import pytest

from detrain.errors import UsageError
from detrain.report import history
from detrain.report.page import check_own

from .conftest import call

pytest.importorskip("plotly", reason="the report is drawn with plotly: pip install 'detrain-run[report]'")

#: Prints a metric in each batch; killed after the batch that DIE names, or before it comes to train.
TRAINING = """
import os, sys
import torch
if os.environ.get("DIE") == "early":
    os.kill(os.getpid(), 9)
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
        if os.environ.get("DIE") == f"{epoch}.{batch}":
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
    for moment in ("1.7", "early"):
        assert call(*words, folder=folder, DIE=moment, DETRAIN_LEDGER_BUDGET="1").status == -9
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
    assert "30 batches 3 attempts, 1 of which never came to the training 3 batches done again after kills" in words
    assert re.search(
        r" 1 2[-\d]+ .* 3 attempt 3 went on 2 ended before it came to the training 3 2[-\d]+ .* finished ", words
    )
    assert "rate 0.05" in words  # never changes, so it is said and not drawn
    assert "not verified" in words


def drawn_by_a_browser(page: Path) -> str:
    """What a browser makes of a page."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip(f"no browser is installed: none of {', '.join(BROWSERS)}")
    done = subprocess.run(
        [browser, *FLAGS, f"--user-data-dir={page.parent / 'profile'}", "--dump-dom", f"file://{page}"],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def page(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report, in a folder of its own."""
    page = tmp_path_factory.mktemp("page") / "page.html"
    assert call("report", "run", "-o", str(page), folder=run.parent).status == 0
    return page


def test_a_browser_draws_every_picture_without_a_network(page: Path) -> None:
    drawn = drawn_by_a_browser(page)
    # The loss, the score, the column of the table, the run's life, what checkpoints cost and how large they are.
    titles = re.findall(r'class="[xy]title"[^>]*>([^<]+)<', drawn)
    assert {"loss", "step", "batches", "time"} <= set(titles)
    names = re.findall(r'class="name"[^>]*>([^<]+)<', drawn)
    assert names == ["score", "log.csv: penalty", "the training waited (ms)", "size (MB)"]
    assert drawn.count('class="figure"') == 6
    assert len(re.findall(r'<path class="js-line"[^>]* d="M[^"]{40}', drawn)) >= 4  # two curves, two attempts
    assert len(re.findall(r'<path class="point"', drawn)) >= 8  # checkpoints, in two pictures


@pytest.mark.full
@pytest.mark.parametrize("width", [420, 1280])
def test_nothing_on_the_page_is_wider_than_the_window(page: Path, width: int) -> None:
    """A window of a browser without a screen has 500 pixels at least; a frame may have less."""
    frame = page.with_name(f"frame{width}.html")
    frame.write_text(
        f'<body style="margin:0"><iframe style="border:0;width:{width}px;height:9000px" srcdoc="{escape(page.read_text())}"></iframe>'
        "<script>addEventListener('load', () => setTimeout(() => {"
        "const d = document.querySelector('iframe').contentDocument;"
        "const ends = [...d.querySelectorAll('.figure svg')].map((one) => one.getBoundingClientRect().right);"
        "document.title = `${d.scrollingElement.scrollWidth} ${ends.length} ${Math.max(...ends) <= d.defaultView.innerWidth}`;"
        "}, 500))</script>",
        encoding="utf-8",
    )
    found = re.search(r"<title>(\d+) (\d+) (\w+)</title>", drawn_by_a_browser(frame))
    assert found is not None
    assert int(found[1]) <= width
    assert int(found[2]) >= 6
    assert found[3] == "true"


def test_what_was_printed_twice_lies_at_the_same_batch(tmp_path: Path) -> None:
    """The ledger ends before a kill does. Standard output is a pipe here, and what goes there is collected; standard error is not."""
    script = TRAINING.replace(", flush=True)", '); print(f"at={epoch * 10 + batch + 1}", file=sys.stderr)')
    (tmp_path / "train.py").write_text(script, encoding="utf-8")
    words = ("run", "--ckpt-dir", "run", "--every", "3batches", "train.py")
    said = [call(*words, folder=tmp_path, DIE=moment) for moment in ("0.1", "0.7", "1.9", "")]
    assert [one.status for one in said] == [-9, -9, -9, 0]
    found = {one.name: one for one in history.read(tmp_path / "run").printed}
    at, score = found["at"], found["score"]
    assert (at.over, at.x, at.values) == ("batches", list(range(1, 31)), list(range(1, 31)))
    # What had been printed before a checkpoint has reached the reader: nothing is missing, nothing is there twice.
    assert (score.over, len(score.values)) == ("times printed", 30)
    assert "".join(one.out for one in said).count("score") == 30


@pytest.mark.full
def test_the_page_tells_what_auto_chose(tmp_path: Path) -> None:
    script = TRAINING.replace("print(f", "__import__('time').sleep(0.2); print(f")
    (tmp_path / "train.py").write_text(script, encoding="utf-8")
    assert call("run", "--ckpt-dir", "run", "train.py", folder=tmp_path).status == 0
    assert call("report", "run", folder=tmp_path).status == 0
    assert re.search(
        r"auto chose one every [\d.]+ s", " ".join(Page((tmp_path / "run" / "report.html").read_text()).words.split())
    )


def test_a_file_of_somebody_elses_is_not_written_over(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    check_own(page)
    page.write_text("<title>Mine</title>", encoding="utf-8")
    with pytest.raises(
        UsageError, match=r"report\.html exists and is not a report of detrain; name another file with -o"
    ):
        check_own(page)
    page.write_text("<title>train — detrain report</title>", encoding="utf-8")
    check_own(page)


def test_what_the_page_needs_is_said(run: Path, tmp_path: Path) -> None:
    said = call("report", ".", folder=tmp_path)
    assert (said.status, said.err) == (2, "detrain: error: Invalid value for 'DIR': . is no run directory\n")
    said = call("report", "run", "-o", "nowhere/page.html", folder=run.parent)
    assert said.status == 2
    assert "nowhere/page.html cannot be written" in said.err
