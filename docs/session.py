"""`python docs/session.py`: records a real session in a terminal and draws it as a moving picture, `docs/session.svg`.

The script is that of the first tutorial; what is drawn is what the commands have printed, with long pauses made shorter.
"""

from __future__ import annotations

import os
import pty
import re
import signal
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).parent
#: What is typed, and behind which line it is killed.
COMMANDS = (("detrain run train.py", "epoch 3"), ("detrain run train.py", ""), ("detrain verify .detrain/train", ""))
COLUMNS = 112
#: Pauses are no longer than this; so long the end is shown. Seconds.
LONGEST_S, LAST_S = 0.9, 6.0
#: Of a letter, of a line, and of the frame around; pixels.
LETTER, LINE, EDGE = 7.83, 19, 18
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


class Line(NamedTuple):
    """A line, and when it was there."""

    at_s: float
    text: str
    #: typed, ours (of detrain), plain or killed.
    kind: str


def record(folder: Path) -> Iterator[Line]:
    """All lines of the session, by a clock that pauses do not hold up."""
    now_s = 0.6
    for command, last in COMMANDS:
        yield Line(now_s, f"$ {command}", "typed")
        now_s += 0.8
        last_s = time.monotonic()
        child, terminal = pty.fork()
        if child == 0:
            os.chdir(folder)
            os.execvpe("bash", ["bash", "-c", f"exec {command}"], {**os.environ, "COLUMNS": str(COLUMNS)})
        rest = ""
        while True:
            try:
                rest += os.read(terminal, 65536).decode(errors="replace")
            except OSError:  # its other end is closed
                break
            *lines, rest = rest.split("\n")
            for text in lines:
                shown = _ESCAPE.sub("", text.rstrip("\r").rpartition("\r")[2]).replace(str(folder), "~")
                if shown.strip() and "━" not in shown:  # a bar, which the terminal has erased by then
                    now_s += min(time.monotonic() - last_s, LONGEST_S)
                    last_s = time.monotonic()
                    yield Line(now_s, shown, "ours" if shown.startswith("detrain:") else "plain")
                if last and shown.startswith(last):
                    time.sleep(0.4)  # into the next epoch
                    os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        os.close(terminal)
        if os.WIFSIGNALED(status):
            now_s += LONGEST_S
            yield Line(now_s, "Killed", "killed")
        now_s += 1.2


def wrapped(lines: list[Line]) -> list[Line]:
    """No line is wider than the terminal."""
    return [
        Line(line.at_s, text, line.kind)
        for line in lines
        for text in (
            textwrap.wrap(line.text, COLUMNS, subsequent_indent="  ") if len(line.text) > COLUMNS else [line.text]
        )
    ]


def draw(lines: list[Line]) -> str:
    """The picture; where motion is not wanted, the last frame."""
    whole_s = lines[-1].at_s + LAST_S
    width, height = round(COLUMNS * LETTER + 2 * EDGE), LINE * len(lines) + 2 * EDGE
    styles, texts = [], []
    for number, line in enumerate(lines):
        percent = 100 * line.at_s / whole_s
        styles.append(f"@keyframes k{number}{{0%,{percent:.2f}%{{opacity:0}}{percent + 0.01:.2f}%,100%{{opacity:1}}}}")
        styles.append(f"#l{number}{{animation:k{number} {whole_s:.1f}s infinite}}")
        y = EDGE + LINE * number + 13
        texts.append(f'<text id="l{number}" class="{line.kind}" x="{EDGE}" y="{y}">{escape(line.text)}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img" '
        'aria-label="A training is killed, goes on when the same command is given again, and is proved to have the same bits.">\n'
        "<style>text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;white-space:pre;fill:#cbd5e1}"
        ".typed{fill:#f8fafc;font-weight:bold}.ours{fill:#7dd3fc}.killed{fill:#fca5a5;font-weight:bold}"
        "@media(prefers-reduced-motion:no-preference){" + "".join(styles) + "}</style>\n"
        f'<rect width="{width}" height="{height}" rx="8" fill="#0f172a"/>\n' + "\n".join(texts) + "\n</svg>\n"
    )


def main() -> None:
    """Record, and draw."""
    page = (DOCS / "tutorial" / "first_run.md").read_text(encoding="utf-8")
    script = re.search(r'```python title="train.py"\n(.*?)```', page, re.DOTALL)
    assert script is not None, "the tutorial has the script"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(script[1], encoding="utf-8")
        os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        lines = wrapped(list(record(folder)))
    (DOCS / "session.svg").write_text(draw(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
