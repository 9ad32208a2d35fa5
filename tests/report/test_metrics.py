"""Numbers in printed lines, and after how many batches they came."""

from __future__ import annotations

import pytest

from detrain.report.metrics import numbers_in, series_of
from detrain.world.output_log import Line


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("epoch 3/10 step 200: loss=0.31, lr=1e-3", {"loss": 0.31, "lr": 1e-3}),
        ("Epoch: 3 - loss: 0.3100 - val_loss: .25 - val accuracy: 91", {"loss": 0.31, "val_loss": 0.25, "val accuracy": 91}),
        ("{'loss': 2.3026, 'grad_norm': 1.5e+01, 'epoch': 0.5}", {"loss": 2.3026, "grad_norm": 15.0}),
        ('{"train/loss": -0.5, "step": 7}', {"train/loss": -0.5}),
        ("INFO:root:iter 40 train loss 1.25 ppl 3.49", {"train loss": 1.25, "ppl": 3.49}),
        (" 37%|███▋      | 37/100 [00:01<00:02, 31.5it/s, loss=nan]", {"loss": float("nan")}),
        ("saved to out/model-3.pt at 12:30:05", {}),
        ("took 3 of 4", {}),
    ],
)  # fmt: skip
def test_names_and_numbers_are_found(text: str, expected: dict[str, float]) -> None:
    assert {name: repr(value) for name, value in numbers_in(text).items()} == {
        name: repr(float(value)) for name, value in expected.items()
    }


def lines(*points: tuple[int, float], is_prompt: bool = True) -> list[Line]:
    return [Line(0.0, 1, f"loss {value}", batches, is_prompt) for batches, value in points]


def test_what_was_printed_lies_at_the_batch_that_ran_then() -> None:
    (found,) = series_of(lines((11, 2.1), (15, 2.2), (20, 2.3)))
    assert (found.name, found.x, found.values) == ("loss", [11, 15, 20], [2.1, 2.2, 2.3])
    assert found.over == "batches"


def test_where_pieces_came_late_values_are_counted() -> None:
    (found,) = series_of(lines(*((12, float(n)) for n in range(4)), is_prompt=False) + lines((13, 4.0), (14, 5.0)))
    assert found.over == "times printed"
    assert found.x == list(range(6))


def test_where_most_values_came_in_the_same_batch_they_are_counted() -> None:
    (found,) = series_of(lines(*((12, float(n)) for n in range(9))))
    assert (found.over, found.x) == ("times printed", list(range(9)))


def test_detrains_own_lines_and_single_values_are_no_metric() -> None:
    assert (
        series_of([Line(0.0, 2, "detrain: loss=1", 1), Line(0.0, 2, "detrain: loss=2", 2), Line(0.0, 1, "size=3", 3)])
        == []
    )
