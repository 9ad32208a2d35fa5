"""The functions that `import detrain` offers: looking at what runs have left, from a notebook or a test.

Nothing here trains or resumes; that is `detrain run`'s. Reading a checkpoint executes nothing that is in it, and needs no framework:
elements come as numpy arrays.
"""

from __future__ import annotations

import bisect
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detrain.errors import MissingExtra, UsageError

if TYPE_CHECKING:  # loaded at the first use: `import detrain` loads neither numpy nor h5py
    import numpy as np
    import pandas as pd

    from detrain.state.tree import Tree
    from detrain.store.leaves import Leaf
    from detrain.store.meta import Meta

    Value = np.ndarray[Any, Any] | object


class Snapshot(Mapping[str, "Value"]):
    """A checkpoint, as a mapping from the paths of its leaves to their values.

    >>> snapshot = detrain.load(".detrain/train")
    >>> snapshot["train.model.fc1.weight"].shape
    (128, 64)

    A leaf is an array (a tensor, a numpy array: its elements, in its shape) or a plain value (a number, a string). The elements of dtypes
    that numpy lacks (bfloat16, float8) are whole numbers of the same size; `dtype` names them. Arrays are read-only views of the file.
    """

    def __init__(self, path: Path, meta: Meta, tree: Tree) -> None:
        from detrain.store import leaves

        #: The file.
        self.path = path
        #: Where in the run it stands, and the surroundings that it was taken in.
        self.meta = meta
        self._tree = tree
        self._leaves: dict[str, Leaf] = {}
        for leaf in leaves.leaves(tree):
            self._leaves.setdefault(leaf.path, leaf)

    @property
    def epoch(self) -> int:
        """The epoch that comes next, from 0."""
        return self.meta.epoch

    @property
    def batch(self) -> int:
        """The batch in the epoch that comes next, from 0."""
        return self.meta.batch

    @property
    def missing(self) -> dict[str, str]:
        """Paths of the objects whose state is not in the checkpoint although the loop may have changed it, with the reasons."""
        nodes = enumerate(self._tree.nodes)
        return {self._tree.path(number): str(node["kept"]) for number, node in nodes if node.get("loud")}

    def dtype(self, path: str) -> str:
        """The dtype of a leaf's elements (`float32`, `bfloat16`), or the type of a plain value (`int`). Raises `KeyError`."""
        return self._leaves[path].kind

    def digest(self, path: str) -> str:
        """The xxh3-128 of a leaf, in hex: equal digests are equal bits. Raises `KeyError`."""
        return self._leaves[path].digest

    def __getitem__(self, path: str) -> Value:
        from detrain.store import leaves

        leaf = self._leaves[path]
        if leaf.node < 0:
            value: object = leaves.value_of(leaf.ref)
            return value
        elements = leaves.elements_of(self._tree, self._tree.nodes[leaf.node])
        if elements is None:
            raise KeyError(f"{path} holds no elements that numpy can show")
        shown = elements.view()
        shown.flags.writeable = False
        return shown

    def __iter__(self) -> Iterator[str]:
        return iter(self._leaves)

    def __len__(self) -> int:
        return len(self._leaves)

    def __repr__(self) -> str:
        return f"<Snapshot {self.path.name}: epoch {self.epoch}, batch {self.batch}, {len(self)} leaves>"


@dataclass(frozen=True)
class Difference:
    """One leaf that differs. `what` says how: "elements", "value", "type", "length", "only in a" …; `details` has the values and bits."""

    path: str
    what: str
    details: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Diff:
    """What `diff` has found."""

    #: True if every leaf has the same bits on both sides, and of two runs also every batch on record.
    same: bool
    num_leaves: int
    num_differences: int
    #: The first of them.
    differences: list[Difference]
    #: What differs and is not counted: versions, folders, process ids.
    notes: list[str]
    #: Of two runs: the batches that had ended at the first record that differs, and the leaf; None if there is none.
    parting: dict[str, object] | None

    def __bool__(self) -> bool:
        """True if something differs, as `git diff --exit-code` has it."""
        return not self.same


@dataclass(frozen=True)
class Segment:
    """One part of a run that was done again. `result` is "same" if it gave the same bits."""

    start: str
    until: str
    result: str
    #: Records of the ledger that were compared, and seconds that it took.
    num_compared: int
    seconds: float
    details: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Proof:
    """What `verify` has found."""

    #: True if every part gave the same bits, and no checkpoint is damaged.
    same: bool
    segments: list[Segment]
    #: What is wrong with checkpoints that could not be read.
    damaged: list[str]


def load(path: str | os.PathLike[str]) -> Snapshot:
    """Read a checkpoint.

    Args:
        path: a checkpoint file, or a run directory, for its latest checkpoint.

    Raises:
        UsageError: a run directory holds no checkpoint.
        CheckpointError: the file is not a checkpoint, or is damaged; every digest is checked.
    """
    from detrain.store import checkpoint
    from detrain.store.directory import RunDirectory

    file = Path(path)
    if file.is_dir():
        good, bad = RunDirectory(file).read_checkpoints()
        if not good:
            raise bad[0] if bad else UsageError(f"there is no checkpoint in {file}")
        file = good[0].path
    header, tree = checkpoint.load(file)
    return Snapshot(file, header.meta, tree)


def diff(a: str | os.PathLike[str], b: str | os.PathLike[str]) -> Diff:
    """Compare two checkpoints or two runs, bit for bit, as `detrain diff` does.

    Args:
        a: a checkpoint file, or a run directory, for its latest checkpoint.
        b: the other one.

    Raises:
        CheckpointError: one of them cannot be read.
    """
    from detrain.proof import diff as differ

    result = differ.compare(Path(a), Path(b))
    differences = [
        Difference(entry["path"], entry["what"], {name: value for name, value in entry.items() if name not in ("path", "what")})
        for entry in result["differences"]
    ]  # fmt: skip
    return Diff(
        result["same"], result["num_leaves"], result["num_differences"], differences, result["notes"], result["parting"]
    )


def verify(
    path: str | os.PathLike[str], jobs: int | None = None, on_segment: Callable[[Segment], None] = lambda _: None
) -> Proof:
    """Do a run again in a sandbox, and compare it with its checkpoints and its ledger, as `detrain verify` does.

    Args:
        path: the run directory.
        jobs: parts of the run to do at a time; as many as there are cores for the run's threads if None.
        on_segment: called with each part as it is done.

    Raises:
        DetrainError: nothing can be done again, because the source has changed or the system allows no sandbox, say.
    """
    from detrain.proof import verify as verifier

    result = verifier.verify(Path(path), jobs, lambda row: on_segment(_segment_of(row)))
    return Proof(result["same"], [_segment_of(row) for row in result["segments"]], result["damaged"])


def history(path: str | os.PathLike[str]) -> pd.DataFrame:
    """The losses of a run, one row each, as a pandas data frame.

    Of a batch that was done more than once, as attempts were killed, there is the last.

    Args:
        path: a run directory, or that of a job of several ranks.

    Returns:
        A frame with the columns `batch` (the batch of the run that the loss is of, from 1), `which` (of the losses of a batch, from 0),
        `loss`, `at` (when that was known, in UTC; losses that were read together have the same) and `attempt` (which has computed it).

    Raises:
        UsageError: this is no run directory.
        MissingExtra: pandas is not installed.
    """
    try:
        import pandas as pd
    except ImportError:
        raise MissingExtra("a data frame needs pandas, which is not installed", "frame") from None
    from detrain.report import history as histories

    run = histories.read(Path(path))
    rows: list[tuple[int, int, float, float, int]] = []
    points: list[tuple[int, float, int]] = []
    for one in run.attempts:  # what a later attempt has done again stands for what an earlier one did
        points = [point for point in points if point[0] <= one.begin]
        points += [(batches, at_s, one.number) for at_s, batches in one.points[1:]]
    points.sort()
    ends = [batches for batches, _, _ in points]
    for (batches, which), loss in sorted(run.ledger.losses.items()):
        place = bisect.bisect_left(ends, batches)  # the first time that reaches it
        _, at_s, number = points[place] if place < len(points) else (0, float("nan"), 0)
        rows.append((batches, which, loss, at_s, number))
    frame = pd.DataFrame(rows, columns=["batch", "which", "loss", "at", "attempt"])
    frame["at"] = pd.to_datetime(frame["at"], unit="s", utc=True)
    return frame


_OF_SEGMENT = ("start", "until", "result", "num_compared", "seconds")


def _segment_of(row: dict[str, Any]) -> Segment:
    details = {name: value for name, value in row.items() if name not in _OF_SEGMENT}
    return Segment(**{name: row[name] for name in _OF_SEGMENT}, details=details)
