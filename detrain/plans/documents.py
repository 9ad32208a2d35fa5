"""Documents on disk (JSON, TOML, YAML): what they say of themselves, and their fields, each checked as it is read.

Errors name the file and the place in it: `plan.json: stages[0]: start is missing`.
"""

from __future__ import annotations

import builtins
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, TypeVar

from detrain.errors import GraphError

_Value = TypeVar("_Value")


@dataclass(frozen=True)
class DocumentKind:
    """One of the JSON documents that this package writes. It begins with its kind and with the version of its format."""

    kind: str
    format: int
    #: What messages call it: "a plan".
    called: str

    def header(self) -> dict[str, object]:
        """The first two fields of a document."""
        return {"kind": self.kind, "format": self.format}

    def check(self, document: object, place: str) -> dict[str, object]:
        """The document, if it is of this kind and version. Raises `GraphError` naming `place`, such as its file, if not."""
        if type(document) is not dict or document.get("kind") != self.kind:
            raise GraphError(f"{place} is not {self.called}: its kind must be {self.kind!r}")
        if document.get("format") != self.format:
            raise GraphError(f"{place} has format {document.get('format')!r}; this detrain reads format {self.format}")
        return document

    def read(self, path: Path) -> dict[str, object]:
        """The document of a file. Raises `GraphError` for another kind or version and for what is not JSON, or `OSError`."""
        return self.check(parsed(path, "JSON", json.loads), str(path))

    def write(self, path: Path, fields: Mapping[str, object]) -> None:
        """A document with these fields behind its first two, on one line. The same fields are the same bytes. Raises `OSError`."""
        document = {**self.header(), **fields}
        path.write_text(json.dumps(document, separators=(",", ":")) + "\n", encoding="utf-8")


@contextmanager
def errors_naming(path: Path) -> Iterator[None]:
    """Every `GraphError` from within names this file, if it does not yet."""
    try:
        yield
    except GraphError as error:
        if str(error).startswith(str(path)):
            raise
        raise GraphError(f"{path}: {error}") from None


class Fields:
    """The table of a document at `place`, such as `FILE: stages[0]`. Every method raises `GraphError`.

    `known` are the names that may stand in the table; without any, all may.
    """

    def __init__(self, document: object, place: str, known: Iterable[str] = ()) -> None:
        self.place = place
        if type(document) is not dict:
            raise GraphError(f"{place} is {_shown(document)}, not a table of names and values")
        self._document: dict[object, object] = document
        names = tuple(known)
        for name in document:
            if names and name not in names:
                raise GraphError(f"{place}: {_shown(name)} is none of {', '.join(names)}")

    def names(self) -> tuple[str, ...]:
        """Of all fields, in the order of the document. Other keys than strings, which YAML has, are left out."""
        return tuple(name for name in self._document if isinstance(name, str))

    def has(self, name: str) -> bool:
        """True if it is there, and not null."""
        return self._document.get(name) is not None

    def is_text(self, name: str) -> bool:
        """True if it is there as a string."""
        return type(self._document.get(name)) is str

    def is_list(self, name: str) -> bool:
        """True if it is there as a list."""
        return type(self._document.get(name)) is builtins.list

    def wrong(self, name: str, why: str) -> NoReturn:
        """A field is not what it should be; `why` ends the message, as in "not a list"."""
        raise GraphError(f"{self.place}: {name} is {_shown(self._document.get(name))}, {why}")

    def take(self, name: str, kind: type[_Value], called: str) -> _Value:
        """A field of exactly this type, which the message calls `called`: a bool is no int."""
        if name not in self._document:
            raise GraphError(f"{self.place}: {name} is missing")
        value = self._document[name]
        if not isinstance(value, kind) or type(value) is not kind:
            self.wrong(name, f"not {called}")
        return value

    def text(self, name: str) -> str:
        """A string."""
        return self.take(name, str, "a text")

    def flag(self, name: str) -> bool:
        """True or false."""
        return self.take(name, bool, "true or false")

    def whole(self, name: str, least: int = 0) -> int:
        """A whole number from `least` on."""
        value = self.take(name, int, f"a whole number from {least} on")
        if value < least:
            self.wrong(name, f"not a whole number from {least} on")
        return value

    def number(self, name: str, *, is_above_zero: bool = False) -> float:
        """A number of zero or more, or above it."""
        if name not in self._document:
            raise GraphError(f"{self.place}: {name} is missing")
        return number(self._document[name], f"{self.place}: {name}", is_above_zero=is_above_zero)

    def list(self, name: str) -> builtins.list[object]:
        """Any list."""
        values: builtins.list[object] = self.take(name, builtins.list, "a list")
        return values

    def wholes(self, name: str, least: int = 0) -> tuple[int, ...]:
        """A list of whole numbers from `least` on."""
        values = self.list(name)
        numbers = tuple(value for value in values if type(value) is int and value >= least)
        if len(numbers) < len(values):
            self.wrong(name, f"not a list of whole numbers from {least} on")
        return numbers

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of strings."""
        values = self.list(name)
        texts = tuple(value for value in values if type(value) is str)
        if len(texts) < len(values):
            self.wrong(name, "not a list of texts")
        return texts

    def table(self, name: str, known: Iterable[str] = ()) -> Fields:
        """What lies within; `known` as for this table."""
        if name not in self._document:
            raise GraphError(f"{self.place}: {name} is missing")
        return Fields(self._document[name], f"{self.place}: {name}", known)

    def tables(self, name: str, known: Iterable[str] = ()) -> tuple[Fields, ...]:
        """A list of tables; `known` as for this table."""
        names = tuple(known)
        return tuple(
            Fields(table, f"{self.place}: {name}[{place}]", names) for place, table in enumerate(self.list(name))
        )


def number(value: object, place: str, *, is_above_zero: bool = False) -> float:
    """A value as a number of zero or more, or above it. Raises `GraphError` naming `place`."""
    converted = _float(value)
    if not 0 <= converted < math.inf or (is_above_zero and not converted):
        raise GraphError(
            f"{place} is {_shown(value)}, not a number {'above zero' if is_above_zero else 'of zero or more'}"
        )
    return converted


def _float(value: object) -> float:
    """Not a number for what is none; a bool is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf


def read_text(path: Path) -> str:
    """Of a file, without the mark that some editors put in front. Raises `GraphError` if it is none, or `OSError`."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise GraphError(f"{path} is not text: {error}") from None


def parsed(path: Path, called: str, parse: Callable[[str], object]) -> object:
    """The text of a file, parsed; messages call the language `called`, as in "JSON".

    Raises `GraphError` where `parse` raises `ValueError`, and for what is not text; or `OSError`.
    """
    try:
        return parse(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise GraphError(f"{path} is not {called}: {error}") from None


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"
