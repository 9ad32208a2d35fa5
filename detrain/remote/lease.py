"""Who may publish a run: one directory on one machine at a time.

    leases/0000000003.json     the third lease: who has it, and until when

A lease is had by making the object of the next number, which an object store lets only one of two do. Its owner renews it; one that is not
renewed expires. An owner that was cut off finds a higher number when it comes back, and publishes no more.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from detrain.remote.objects import ExistsError, MissingError, Store, StoreError

FOLDER = "leases"
#: How long a lease is good for without being renewed; a third of it goes by between two renewals.
TERM_S = 120.0
#: How long two that have made the same object wait to see whose it is, where the store lets both. Seconds.
_SETTLE_S = 2.0
_NUMBER = re.compile(rf"{FOLDER}/(\d{{10}})\.json$")
_TRIES = 5


@dataclass(frozen=True)
class Terms:
    """What a lease says. `owner`: see `side.Side.owner`; times in seconds since 1970."""

    owner: str
    host: str
    process: int
    since: float
    expires: float

    def encode(self) -> bytes:
        """As JSON."""
        return json.dumps(asdict(self), sort_keys=True).encode() + b"\n"

    def __str__(self) -> str:
        until = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(self.expires))
        return f"process {self.process} on {self.host}, until {until}"


class Lost(Exception):  # noqa: N818 - what has happened, and no mistake of this process's
    """Somebody else holds the run now."""


class Held(Exception):  # noqa: N818 - no mistake
    """Somebody else's lease has not expired."""

    def __init__(self, terms: Terms) -> None:
        super().__init__(str(terms))
        self.terms = terms


class Lease:
    """The lease of one publisher."""

    def __init__(
        self,
        store: Store,
        owner: str,
        host: str,
        process: int,
        *,
        term_s: float = TERM_S,
        clock: Callable[[], float] = time.time,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._store, self._clock, self._pause, self._term_s = store, clock, pause, term_s
        self._terms = Terms(owner, host, process, clock(), 0.0)
        self._number = 0

    def acquire(self) -> None:
        """Raises `Held`, and `StoreError`. The owner's own lease, of a process that is gone, is no hindrance."""
        for _ in range(_TRIES):
            number, current = self._highest()
            if current is not None and current.owner != self._terms.owner and current.expires > self._clock():
                raise Held(current)
            now = self._clock()
            terms = replace(self._terms, since=now, expires=now + self._term_s)
            try:
                is_only = self._store.create(_object(number + 1), terms.encode())
            except ExistsError:
                continue  # somebody was quicker, or the listing lags behind
            if not is_only:
                self._pause(_SETTLE_S)
            self._terms, self._number = terms, number + 1
            if self._is_mine():
                self._delete_before()
                return
        raise StoreError(f"the leases in {self._store.url} change faster than they can be read")

    @property
    def is_due(self) -> bool:
        """True when it should be renewed."""
        return self._clock() > self._terms.expires - self._term_s * 2 / 3

    def renew(self) -> None:
        """Raises `Lost` where somebody else has it now, and `StoreError`; then it is good until it expires."""
        number, _ = self._highest()
        if number > self._number or not self._is_mine():
            raise Lost
        self._terms = replace(self._terms, expires=self._clock() + self._term_s)
        self._store.write(_object(self._number), self._terms.encode())

    def check(self) -> None:
        """Before something is written: raises `Lost`, and `StoreError` where it cannot be renewed any more."""
        if self._clock() > self._terms.expires - self._term_s / 6:
            self.renew()

    def release(self) -> None:
        """Let the next one begin at once. Raises `StoreError`."""
        if self._is_mine():
            self._store.delete(_object(self._number))

    def _is_mine(self) -> bool:
        found = self._read(self._number)
        ours = self._terms
        return found is not None and (found.owner, found.process, found.since) == (ours.owner, ours.process, ours.since)

    def _highest(self) -> tuple[int, Terms | None]:
        number = max(_numbers(self._store), default=0)
        return number, self._read(number) if number else None

    def _read(self, number: int) -> Terms | None:
        """None for what is gone, and for what stays half written."""
        for attempt in range(2):
            with contextlib.suppress(MissingError):
                try:
                    return Terms(**json.loads(self._store.read(_object(number))))
                except (ValueError, TypeError):
                    if not attempt:
                        self._pause(_SETTLE_S)
                    continue
            return None
        return None

    def _delete_before(self) -> None:
        for number in _numbers(self._store):
            if number < self._number:
                self._store.delete(_object(number))


def _object(number: int) -> str:
    return f"{FOLDER}/{number:010}.json"


def _numbers(store: Store) -> list[int]:
    return [int(found[1]) for name in store.names(FOLDER) if (found := _NUMBER.match(name)) is not None]


def current(store: Store) -> Terms | None:
    """What the latest lease says; None where there is none, or none that can be read."""
    number = max(_numbers(store), default=0)
    try:
        return Terms(**json.loads(store.read(_object(number)))) if number else None
    except (MissingError, ValueError, TypeError):
        return None
