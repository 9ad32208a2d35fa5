"""Numbers in printed lines, and after how many batches they came."""

from __future__ import annotations

import pytest

from detrain.report.metrics import numbers_in, series_of
from detrain.store.ledger import Ledger
from detrain.store.printed import Line


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


def ledger_of(attempts: list[float], times: list[tuple[float, int]]) -> Ledger:
    return Ledger({}, {}, [{"attempt": n, "batches": 0, "at": at} for n, at in enumerate(attempts, 1)], [], times=times)


def test_what_was_printed_lies_at_the_batch_that_ran_then() -> None:
    ledger = ledger_of([10.0], [(20.0, 10), (30.0, 20)])
    (found,) = series_of(
        [Line(at, 1, f"loss {value}") for at, value in ((20.05, 2.1), (25.0, 2.2), (29.9, 2.3))], ledger
    )
    assert (found.name, found.x, found.values) == ("loss", [11, 15, 20], [2.1, 2.2, 2.3])
    assert found.over == "batches"


def test_what_a_resumed_attempt_prints_again_takes_the_place_of_the_first() -> None:
    ledger = ledger_of([10.0, 40.0], [(20.0, 10), (30.0, 20), (50.0, 15), (60.0, 25)])
    lines = [Line(at, 1, f"loss={value}") for at, value in ((19.5, 1.0), (29.9, 2.0), (54.95, 3.0), (59.9, 4.0))]
    (found,) = series_of(lines, ledger)
    assert (found.x, found.values) == ([10, 20, 25], [1.0, 3.0, 4.0])


def test_where_pieces_came_late_values_are_counted() -> None:
    ledger = ledger_of([10.0], [(20.0, 10), (30.0, 20)])
    (found,) = series_of([Line(29.0, 1, f"loss={n}") for n in range(9)], ledger)
    assert found.over == "times printed"
    assert found.x == list(range(9))


def test_detrains_own_lines_and_single_values_are_no_metric() -> None:
    lines = [Line(1.0, 2, "detrain: loss=1"), Line(2.0, 2, "detrain: loss=2"), Line(3.0, 1, "size=3")]
    assert series_of(lines, ledger_of([0.0], [])) == []
