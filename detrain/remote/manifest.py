"""The manifest: which objects make up a run. What no manifest names does not exist.

    manifests/0000000012.json     one for each publication; made, never replaced, so of two that publish the same number one fails
    MANIFEST.json                 the same text again, for stores whose listings lag behind, and for people
    data/NAME.DIGEST              the content of one file of the run directory; never replaced by anything else

A manifest is a JSON document with `digest`, the xxh3-128 of the text of `manifest`. The highest number that can be read holds.
"""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import asdict, dataclass, field
from typing import Any

import xxhash

from detrain.errors import CheckpointError
from detrain.remote.objects import MissingError, Store
from detrain.store.record import RunRecord

FORMAT = 1
CURRENT, NUMBERED, DATA = "MANIFEST.json", "manifests", "data"
_OLD = re.compile(r"MANIFEST\.old(\d+)\.json$")
_NUMBER = re.compile(rf"{NUMBERED}/(\d{{10}})\.json$")


@dataclass(frozen=True)
class Identity:
    """Which run it is: one that was begun at the same second by the same process is the same, whatever it has gone on with since."""

    script: str = field(compare=False)
    arguments: tuple[str, ...] = field(compare=False)
    began: str
    process: int | None

    @classmethod
    def of(cls, record: RunRecord) -> Identity:
        """Of a run's record."""
        return cls(record.script, tuple(record.arguments), record.began, record.process)

    def __str__(self) -> str:
        return f"{self.command}, begun {self.began}"

    @property
    def command(self) -> str:
        """Script and arguments."""
        return " ".join((self.script, *self.arguments))


@dataclass(frozen=True)
class Stored:
    """The object of one file; `size` in bytes."""

    object: str
    size: int
    digest: str


@dataclass(frozen=True)
class Saved:
    """What is to be known of a checkpoint before it is fetched. `needs`: the other files without which it cannot be resumed from."""

    sequence: int
    epoch: int
    batch: int
    needs: tuple[str, ...]


@dataclass(frozen=True)
class Manifest:
    """One state of a run."""

    number: int
    run: Identity
    attempts: int
    #: Of the newest checkpoint; 0 where there is none.
    sequence: int
    is_finished: bool
    #: The directory that it was published from, as `lease.owner_of` names it.
    owner: str
    #: For people: the host and directory, and when.
    where: str
    at: str
    files: dict[str, Stored] = field(default_factory=dict)
    checkpoints: dict[str, Saved] = field(default_factory=dict)

    @property
    def objects(self) -> set[str]:
        """Names of the objects that it needs."""
        return {stored.object for stored in self.files.values()}

    @property
    def digest(self) -> str:
        """By which a later publisher knows that it goes on from this one."""
        return _digest(self._text())

    def _text(self) -> str:
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    def encode(self) -> bytes:
        """The document."""
        text = self._text()
        return f'{{"format": {FORMAT}, "digest": "{_digest(text)}", "manifest": {text}}}\n'.encode()

    @classmethod
    def decode(cls, content: bytes, name: str) -> Manifest:
        """The inverse of `encode`. Raises `CheckpointError` for what is damaged or of another format; `name` is the object's."""
        try:
            document = json.loads(content)
            number = document["format"]
            body: dict[str, Any] = document["manifest"]
            text = json.dumps(body, sort_keys=True, separators=(",", ":"))
            if number == FORMAT and _digest(text) != document["digest"]:
                raise CheckpointError(f"{name} is damaged: its digest is another")
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{name} is no manifest: {type(error).__name__}: {error}") from None
        if number != FORMAT:
            raise CheckpointError(f"{name} has format {number}; this detrain reads {FORMAT}")
        files = {key: Stored(**value) for key, value in body.pop("files").items()}
        saved = {
            key: Saved(**{**value, "needs": tuple(value["needs"])}) for key, value in body.pop("checkpoints").items()
        }
        run = Identity(**{**body["run"], "arguments": tuple(body["run"]["arguments"])})
        return cls(**{**body, "run": run}, files=files, checkpoints=saved)


def _digest(text: str) -> str:
    return xxhash.xxh3_128_hexdigest(text.encode())


def numbered(number: int) -> str:
    """The object of the manifest of this number."""
    return f"{NUMBERED}/{number:010}.json"


def numbers(store: Store) -> list[int]:
    """Of the manifests there are, as far as the store's listing tells."""
    return sorted(int(found[1]) for name in store.names(NUMBERED) if (found := _NUMBER.match(name)) is not None)


def read(store: Store) -> Manifest | None:
    """The manifest that holds; None where nothing has been published.

    Raises `CheckpointError` where there are manifests and none can be read, and `StoreError`.
    """
    found: list[Manifest] = []
    wrong: list[str] = []
    with contextlib.suppress(MissingError):
        _read_one(store, CURRENT, found, wrong)
    for number in reversed(numbers(store)):
        if found and number <= max(one.number for one in found):
            break
        with contextlib.suppress(MissingError):
            _read_one(store, numbered(number), found, wrong)
    if not found and wrong:
        raise CheckpointError(f"no manifest in {store.url} can be read: {'; '.join(wrong)}")
    return max(found, key=lambda one: one.number, default=None)


def _read_one(store: Store, name: str, found: list[Manifest], wrong: list[str]) -> None:
    content = store.read(name)
    try:
        found.append(Manifest.decode(content, name))
    except CheckpointError as error:
        wrong.append(str(error))


def read_kept(store: Store) -> list[Manifest]:
    """Manifests of earlier runs that `--fresh` has kept. Raises `CheckpointError` for one that cannot be read."""
    return [Manifest.decode(store.read(name), name) for name in store.names() if _OLD.match(name)]


def keep(store: Store, manifest: Manifest) -> str:
    """Keep what a manifest names although another run takes its place; returns the object that does so."""
    taken = {name for name in store.names() if _OLD.match(name)}
    number = next(number for number in range(1, len(taken) + 2) if f"MANIFEST.old{number}.json" not in taken)
    name = f"MANIFEST.old{number}.json"
    store.create(name, manifest.encode())
    return name


def retire(store: Store, manifest: Manifest) -> str:
    """Keep the run of a manifest under another name, and leave the store as if nothing had been published; returns that name."""
    name = keep(store, manifest)
    for number in numbers(store):
        store.delete(numbered(number))
    store.delete(CURRENT)
    return name
