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
    key: tuple[int, int]  # of the record
    last_key: tuple[int, int] | None  # of the last record that both have and that is the same
    last_same: int  # batches ended at the last record that both have and that is the same; -1 if there is none
    num_compared: int  # records that both have, up to here


def find(a: Ledger, b: Ledger, names: tuple[str, str] = ("", "")) -> Parting | None:
    """Compare what both ledgers cover. `names`: of the scripts, which begin the paths of their variables."""
    last_same, last_key = -1, None
    both = [key for key in a.batches if key in b.batches]
    for count, key in enumerate(both, 1):
        one, other = a.batches[key], b.batches[key]
        pieces: tuple[dict[tuple[str, int], int], ...] = {}, {}
        if a.seen_at.get(one.list_number) == b.seen_at.get(other.list_number):
            pieces = _pieces(a, one, names[0]), _pieces(b, other, names[1])
        leaf = _first_difference(one, other, *pieces)
        if leaf:
            epoch = max(one.epochs - 1, 0)
            return Parting(one.batches, epoch, one.batch_in_epoch, leaf, key, last_key, last_same, count)
        last_same, last_key = one.batches, key
    return None


def _first_difference(
    a: Batch, b: Batch, pieces_a: dict[tuple[str, int], int], pieces_b: dict[tuple[str, int], int]
) -> str:
    for key, digest in pieces_a.items():
        other = pieces_b.get(key, 0)
        if digest and other and digest != other:
            return key[0]
    if a.generators and b.generators and a.generators != b.generators:
        return "a generator of random numbers"
    if a.num_losses == b.num_losses and a.losses != b.losses:
        return "a loss"
    return ""


def _pieces(ledger: Ledger, batch: Batch, script: str) -> dict[tuple[str, int], int]:
    """Leaf and first byte of each piece that a record covers, with its digest."""
    window = ledger.window(batch)
    return {
        (path.removeprefix(f"{script}."), start): digest
        for (path, start), digest in zip(window, batch.pieces, strict=True)
    }
