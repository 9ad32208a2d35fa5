"""What the other ranks of a job know of a file, where several of them make it (a cache, a lock): who comes first differs by attempt."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from detrain.errors import RestoreError
from detrain.outputs.journal import FILE, Journal, Record


class OtherRanks:
    """The journals of the ranks whose directories can be seen from here, as earlier attempts have left them."""

    def __init__(self, directory: Path, job: Path | None) -> None:
        """`directory` is this rank's own, `job` the one that holds all ranks'; None where there are none."""
        self._directory, self._job = directory, job
        self._journals: dict[str, Journal] = {}

    def read(self) -> None:
        """Learn what they have recorded. What cannot be read is its own rank's trouble, and is told there."""
        for place in sorted(self._job.glob("rank_*")) if self._job is not None else ():
            if place.name != self._directory.name:
                journal = Journal(place)
                with contextlib.suppress(RestoreError, OSError):
                    journal.read(is_own=False)
                    self._journals[place.name] = journal

    @property
    def journals(self) -> list[Journal]:
        """Those that could be read."""
        return list(self._journals.values())

    def knows(self, path: str) -> bool:
        """True if another rank has changed it too."""
        return any(journal.state(path, 0) is not None for journal in self._journals.values())

    def is_first(self, record: Record, offsets: Mapping[str, int] | None = None) -> bool:
        """True if another rank has changed this record's path before this rank made the record.

        `offsets`: how long their journals were at the moment that both go back to, by the names of their directories; 0 without.
        """
        mine = (
            *record.moment,
            self._directory.name,
        )  # at one moment one of them is the first, so that one puts it back
        states = self._states(record.path, offsets)
        return any(theirs.recorded_ns and (*theirs.moment, name) < mine for name, theirs in states)

    def content_of(self, path: str, size: int, offsets: Mapping[str, int] | None = None) -> str | None:
        """A file that another rank has kept, which begins with what `path` held when it had `size` bytes and was only appended to since."""
        kept = [
            (record.recorded_ns, str(journal.kept / record.content))
            for name, journal in self._journals.items()
            for record in journal.since(path, _offset(journal, name, offsets))
            if record.kind == FILE and record.content and record.size >= size
        ]
        return next((place for _, place in sorted(kept) if os.path.exists(place)), None)

    def _states(self, path: str, offsets: Mapping[str, int] | None) -> Iterator[tuple[str, Record]]:
        for name, journal in self._journals.items():
            record = journal.state(path, _offset(journal, name, offsets))
            if record is not None:
                yield name, record


def _offset(journal: Journal, name: str, offsets: Mapping[str, int] | None) -> int:
    return 0 if offsets is None else offsets.get(name, len(journal.records))
