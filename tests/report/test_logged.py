"""Numbers in the tables that a script has written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from detrain.report.logged import series_of


@pytest.fixture
def tables(tmp_path: Path):
    """Write files and a journal that names them; returns what is found."""

    def write(**texts: str):
        lines = []
        for number, (name, text) in enumerate(texts.items()):
            path = tmp_path / name.replace("_", ".")
            path.write_text(text, encoding="utf-8")
            lines.append(json.dumps([number, str(path), "absent", 0, "", True]))
        (tmp_path / "files.log").write_text("\n".join(lines) + '\n["torn', encoding="utf-8")
        return [(one.name, one.over, one.x, one.values) for one in series_of(tmp_path)]

    return write


def test_columns_lie_over_the_column_that_counts(tables) -> None:
    found = tables(log_csv="epoch,loss,note,acc\n1,0.5,best,\n2,0.25,,90\n5,0.125,,91.5\n")
    assert found == [
        ("log.csv: loss", "epoch", [1, 2, 5], [0.5, 0.25, 0.125]),
        ("log.csv: acc", "epoch", [2, 5], [90, 91.5]),
    ]


@pytest.mark.parametrize(
    "text", ["loss\n3\n2\n", "epoch,loss\n1,3\n1,2\n", "step,loss\n4,3\n1,2\n"], ids=["none", "resting", "falling"]
)
def test_without_one_they_lie_over_rows(tables, text: str) -> None:
    assert tables(log_csv=text)[-1] == ("log.csv: loss", "rows of log.csv", [0, 1], [3, 2])


def test_without_a_header_no_row_is_lost(tables) -> None:
    assert tables(log_csv="0,3,0.5\n1,2,0.25\n") == [
        ("log.csv: column 1", "rows of log.csv", [0, 1], [0, 1]),
        ("log.csv: column 2", "rows of log.csv", [0, 1], [3, 2]),
        ("log.csv: column 3", "rows of log.csv", [0, 1], [0.5, 0.25]),
    ]


def test_json_lines_and_tabs(tables) -> None:
    found = tables(
        a_jsonl='{"step": 10, "loss": 1.5, "ok": true, "name": "x"}\n[1]\n{"step": 20, "loss": NaN}\n{"step": 30, "loss": 0.5}\nend\n',
        b_tsv="iter\tlr\n1\t1e-3\n2\t5e-4\n",
    )
    assert repr(found) == repr(
        [
            ("a.jsonl: loss", "step", [10.0, 20.0, 30.0], [1.5, float("nan"), 0.5]),
            ("b.tsv: lr", "iter", [1.0, 2.0], [1e-3, 5e-4]),
        ]
    )


def test_what_is_no_table_of_numbers_is_left_out(tables, tmp_path: Path) -> None:
    assert tables(a_csv="name,word\nx,y\nz,w\n", b_csv="\x00\n1", c_txt="loss\n1\n2\n", d_csv="loss\n1\n") == []
    (tmp_path / "files.log").unlink()
    assert series_of(tmp_path) == []
