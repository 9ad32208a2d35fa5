"""Where two runs part, according to their ledgers."""

from __future__ import annotations

from dataclasses import dataclass

from detrain.store.ledger import Batch, Ledger


@dataclass(frozen=True)
class Parting:
    """The first batch on record after which two runs differ."""

    batches: int  # ended since the run began
    epoch: int
    batch: int  # of the epoch
    leaf: str  # what differs first
    last_same: int  # batches ended at the last record that both have and that is the same; -1 if there is none
    num_compared: int  # records that both have, up to here


def find(a: Ledger, b: Ledger, names: tuple[str, str] = ("", "")) -> Parting | None:
    """Compare what both ledgers cover. `names`: of the scripts, which begin the paths of their variables."""
    last_same = -1
    both = sorted(a.batches.keys() & b.batches.keys())
    previous = [_previous(ledger) for ledger in (a, b)]
    for count, number in enumerate(both, 1):
        one, other = a.batches[number], b.batches[number]
        is_one_window = previous[0][number] == previous[1][number]
        leaf = _first_difference(one, other, _pieces(a, one, names[0]), _pieces(b, other, names[1]), is_one_window)
        if leaf:
            return Parting(number, max(one.epochs - 1, 0), one.batch_in_epoch, leaf, last_same, count)
        last_same = number
    return None


def _first_difference(
    a: Batch, b: Batch, pieces_a: dict[tuple[str, int], int], pieces_b: dict[tuple[str, int], int], is_one_window: bool
) -> str:
    for key, digest in pieces_a.items():
        other = pieces_b.get(key, 0)
        if digest and other and digest != other:
            return key[0]
    if a.generators and b.generators and a.generators != b.generators:
        return "a generator of random numbers"
    # A digest of losses begins where the record before ends.
    if is_one_window and a.losses and b.losses and a.losses != b.losses:
        return "a loss"
    return ""


def _pieces(ledger: Ledger, batch: Batch, script: str) -> dict[tuple[str, int], int]:
    """Leaf and first byte of each piece that a record covers, with its digest."""
    window = ledger.window(batch)
    return {
        (path.removeprefix(f"{script}."), start): digest
        for (path, start), digest in zip(window, batch.pieces, strict=True)
    }


def _previous(ledger: Ledger) -> dict[int, int]:
    """The record before each record."""
    numbers = sorted(ledger.batches)
    return dict(zip(numbers, [-1, *numbers], strict=False))
