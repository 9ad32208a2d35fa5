"""What tests have counted, in tables above the closing line.

Notes go with a test's report, which may come from another process (pytest-xdist); the tables are written here, because of the conftest
files it is this one that the process which writes them loads.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

# Several tests run at a time, each with processes of its own: a thread that waits must not take a processor from the others.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

KILLS, COUNTS = "kills and resumes", "counts"


@pytest.fixture
def note_kills(record_property: Callable[[str, object], None]) -> Callable[[str, int, int, int, str], None]:
    """Notes a program's row: its name, kills, attempts, resumes, verdict."""
    return lambda *row: record_property(KILLS, row)


@pytest.fixture
def note_count(record_property: Callable[[str, object], None]) -> Callable[[str, int, int], None]:
    """Notes how many of how many: what, good ones, all that were tried."""
    return lambda *row: record_property(COUNTS, row)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The tables; the one of kills is long, and stands behind a soak only."""
    is_soak = "soak" in (config.getoption("markexpr") or "").replace("not soak", "")
    if is_soak and (kills := _noted(terminalreporter, KILLS)):
        terminalreporter.section(KILLS)
        terminalreporter.write_line(f"{'program':<40} {'kills':>5} {'attempts':>8} {'resumes':>7}  verdict")
        for name, num_kills, attempts, resumes, verdict in kills:
            terminalreporter.write_line(f"{name:<40} {num_kills:>5} {attempts:>8} {resumes:>7}  {verdict[:90]}")
    if counts := _noted(terminalreporter, COUNTS):
        terminalreporter.section(COUNTS)
        for what, good, tried in counts:
            terminalreporter.write_line(f"{what:<60} {good:>6} of {tried:>6}")


def _noted(terminalreporter: pytest.TerminalReporter, table: str) -> list[Any]:
    reports = [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]
    return [row for report in reports if report.when == "call" for name, row in report.user_properties if name == table]
