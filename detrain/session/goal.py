"""What an attempt does that only does a part of a run again: it stops at a header, and leaves word of what it saw on the way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from detrain.errors import NotSupported
from detrain.session.resume import fail, leads_to, leave

if TYPE_CHECKING:
    from detrain.adapters.loaded import OperatorLog
    from detrain.loops.running import Loop
    from detrain.session.session import Session
    from detrain.store.ledger import Batch

#: In the run directory: what the attempt has found.
REPORT = "rerun.json"


class Rerun:
    """The plan of such an attempt.

    `until`: `position` and `is_exhausted` of the checkpoint that is to be taken again, or None. `operators`: the keys in the ledger of
    the headers between which every operator is noted, or None; the first may be None, for the first header. With neither, the attempt
    goes as far as the ledger, or with `is_whole` to the script's end. With `tells_arrivals` it ends at the checkpoint that it begins from.
    """

    def __init__(self, folder: Path, plan: dict[str, Any]) -> None:
        self._report = folder / REPORT
        self._until: dict[str, Any] | None = plan["until"]
        self._operators: list[Any] | None = plan["operators"]
        self._is_whole: bool = plan["is_whole"]
        #: Whether it is to be told what set-up code has made, at each checkpoint on the way to the one that the attempt begins from.
        self.tells_arrivals: bool = plan.get("tells_arrivals", False)
        self._arrivals: dict[str, Any] = {}
        self._log: OperatorLog | None = None
        self._difference: dict[str, Any] | None = None

    def is_goal(self, loop: Loop) -> bool:
        """True at the header where the part ends: a checkpoint is to be taken, the last thing that the attempt does."""
        if self._until is None or loop.is_exhausted != self._until["is_exhausted"]:
            return False
        position: list[list[Any]] = self._until["position"]
        return loop.iteration == position[-1][3] and leads_to(loop, position)

    def at_header(self, session: Session, loop: Loop) -> None:
        """The ledger has been looked at here: trace operators, or stop, if this is where to."""
        if self._operators is not None:
            self._trace(session, loop, *self._operators)
        elif self._until is None and not self._is_whole and not session.recorder.has_expectations:
            self._stop(session)

    def arrived(self, session: Session, name: str, found: dict[str, Any], *, is_last: bool) -> None:
        """The attempt has come to the header of a checkpoint, of which nothing is restored yet, and found this there."""
        self._arrivals[name] = found
        if is_last:
            self._stop(session, arrivals=self._arrivals)

    def _trace(self, session: Session, loop: Loop, first: list[int] | None, end: list[int]) -> None:
        from detrain.session.recorder import position_of

        here = [session.batches, position_of(loop)]
        if self._log is not None and (here == end or session.batches > end[0]):
            self._stop(session, operators=self._log.stop())
        if self._log is None and here == (first or here):
            try:
                self._log = session.frameworks.log_operators(session.is_user_file)
            except NotSupported as error:
                fail(session, error)

    def differs(self, session: Session, record: Batch, leaf: str) -> None:
        """The state is not what the ledger says."""
        found = {
            "batches": record.batches,
            "epoch": max(record.epochs - 1, 0),
            "batch": record.batch_in_epoch,
            "leaf": leaf,
        }
        self._difference = self._difference or found
        if self._operators is None:
            self._stop(session)

    def saved(self, session: Session) -> NoReturn:
        """The checkpoint has been taken again."""
        self._stop(session)

    def write(self, session: Session, **found: Any) -> None:
        """Leave word."""
        num_compared = session.recorder.num_compared if session.recorder is not None else 0
        word = {"num_compared": num_compared, "difference": self._difference, **found}
        self._report.write_text(json.dumps(word), encoding="utf-8")

    def _stop(self, session: Session, **found: Any) -> NoReturn:
        self.write(session, is_stopped=True, **found)
        leave(session, 0)
