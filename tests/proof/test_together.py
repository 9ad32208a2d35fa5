"""Ranks that do a part of a run again, as processes of a few lines."""

import json
import os
import time
from pathlib import Path

import pytest

from detrain.proof import together


def rank(report: Path, document: dict | None, status: int | None):
    """A program that leaves this report, and then waits (`status` None) or ends."""

    def program():
        if document is not None:
            whole = report.with_suffix(".new")
            whole.write_text(json.dumps(document))
            whole.replace(report)  # at once, as `detrain.session.rerun` writes it: who waits reads it meanwhile
        if status is None:
            time.sleep(600)
        os._exit(status)

    return program


STOPPED = {"is_stopped": True, "difference": None}


@pytest.mark.parametrize(
    ("given", "statuses"),
    [
        ([(STOPPED, None), (STOPPED, None)], [0, 0]),
        ([({"is_stopped": False}, 0), ({"is_stopped": False}, 0)], [0, 0]),
        ([(STOPPED, None), (None, 3)], [0, 3]),
        ([(None, None), ({**STOPPED, "difference": {"leaf": "x"}}, None)], [-9, 0]),
        ([({"is_stopped": False}, 4)], [4]),
    ],
    ids=["all stop", "all end", "one fails", "one differs", "alone"],
)
def test_how_ranks_end(tmp_path, monkeypatch, given, statuses):
    monkeypatch.setattr(together, "_GRACE_S", 0.2)
    reports = [tmp_path / str(number) for number in range(len(given))]
    programs = [rank(report, *one) for report, one in zip(reports, given, strict=True)]
    assert together.run(programs, reports) == statuses
