"""Which part of a run an attempt is to do again (`detrain.session.rerun`)."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # each command makes a request, and few have a goal
    from detrain.store.meta import LoopPosition

#: Of a record in the ledger: batches that had ended, and the digest of the position.
Key = tuple[int, int]


@dataclass(frozen=True)
class Window:
    """Epochs of a run, or batches: what the script prints in them is kept, and behind them the attempt ends.

    Epochs count from 0, batches from 1, both over the run as the ledger counts them; both ends belong to it.
    """

    unit: str  # "epochs" or "batches"
    first: int
    last: int
    #: File and line of the outermost of the training's loops, so that its first iteration is known before the loop is.
    loop: tuple[str, int] = ("", 0)

    def __str__(self) -> str:
        unit = self.unit if self.last > self.first else "epoch" if self.unit == "epochs" else "batch"
        return f"{unit} {self.first}" + (f" to {self.last}" if self.last > self.first else "")


@dataclass(frozen=True)
class Goal:
    """Which part of a run is to be done again.

    With neither `position`, `operators`, `num_steps`, `num_timed` nor `num_rounds` the attempt goes as far as the ledger, or with
    `is_whole` to the script's end.
    """

    #: Position of the checkpoint that is to be taken again, and whether its loop was exhausted there; None: none is.
    position: list[LoopPosition] | None = None
    is_exhausted: bool = False
    #: Keys in the ledger of the headers between which every operator is recorded, or None; the first may be None, for the first header.
    operators: tuple[Key | None, Key] | None = None
    #: So many batches are recorded, as one graph of operators: those behind the first header; 0: none are.
    num_steps: int = 0
    #: So many batches are timed, behind as many that are not; 0: none are.
    num_timed: int = 0
    num_before: int = 0
    #: Those before go on for so long where no step has followed a plan. Seconds.
    most_planning_s: float = 0.0
    #: The model that the first batch calls is profiled, each layer so often; 0: none is.
    num_rounds: int = 0
    #: Its class; "" for the largest.
    model: str = ""
    is_whole: bool = False
    #: The attempt ends at the checkpoint that it begins from, and reports what set-up code has made at each checkpoint on the way there.
    reports_arrivals: bool = False
    #: The attempt goes on to the first record of the ledger behind these, or to `position`.
    window: Window | None = None

    def encode(self) -> dict[str, object]:
        """As JSON."""
        return asdict(self)

    @classmethod
    def decode(cls, document: dict[str, Any]) -> Goal:
        """The inverse of `encode`."""
        from detrain.store.meta import LoopPosition

        goal = cls(**document)
        position = None if goal.position is None else [LoopPosition(*loop) for loop in goal.position]
        if goal.operators is not None:
            first, end = goal.operators
            goal = replace(goal, operators=(None if first is None else (first[0], first[1]), (end[0], end[1])))
        if goal.window is not None:
            window: dict[str, Any] = document["window"]
            goal = replace(goal, window=Window(**{**window, "loop": tuple(window["loop"])}))
        return replace(goal, position=position)
