"""What a file holds, field by field: each is checked as it is taken, and what is wrong is named with its place."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn

from detrain.errors import GraphError


class Fields:
    """The table of a document at a place, `FILE: stages[0]`. Every method raises `GraphError`."""

    def __init__(self, document: Any, place: str, known: Iterable[str] = ()) -> None:
        self.place = place
        if type(document) is not dict:
            raise GraphError(f"{place} is {_shown(document)}, no table of names and values")
        self._document: dict[Any, Any] = document
        names = tuple(known)
        for name in document:
            if names and name not in names:
                raise GraphError(f"{place}: {_shown(name)} is none of {', '.join(names)}")

    def has(self, name: str) -> bool:
        """True if it is there, and not null."""
        return self._document.get(name) is not None

    def is_text(self, name: str) -> bool:
        """True if it is there as a string."""
        return type(self._document.get(name)) is str

    def wrong(self, name: str, why: str) -> NoReturn:
        """A field is not what it should be."""
        raise GraphError(f"{self.place}: {name} is {_shown(self._document.get(name))}, {why}")

    def take(self, name: str, kind: type, called: str) -> Any:
        """A field of exactly this type."""
        if name not in self._document:
            raise GraphError(f"{self.place}: {name} is missing")
        if type(self._document[name]) is not kind:
            self.wrong(name, f"not {called}")
        return self._document[name]

    def text(self, name: str) -> str:
        """A string."""
        found: str = self.take(name, str, "a text")
        return found

    def flag(self, name: str) -> bool:
        """True or false."""
        found: bool = self.take(name, bool, "true or false")
        return found

    def whole(self, name: str, least: int = 0) -> int:
        """A whole number from `least` on."""
        found: int = self.take(name, int, f"a whole number from {least} on")
        if found < least:
            self.wrong(name, f"not a whole number from {least} on")
        return found

    def number(self, name: str, *, is_above_zero: bool = False) -> float:
        """A number of zero or more, or above it."""
        if name not in self._document:
            raise GraphError(f"{self.place}: {name} is missing")
        return number(self._document[name], f"{self.place}: {name}", is_above_zero=is_above_zero)

    def list(self, name: str) -> list[Any]:
        """Any list."""
        found: list[Any] = self.take(name, list, "a list")
        return found

    def wholes(self, name: str, least: int = 0) -> tuple[int, ...]:
        """A list of whole numbers from `least` on."""
        found = self.list(name)
        if not all(type(one) is int and one >= least for one in found):
            self.wrong(name, f"not a list of whole numbers from {least} on")
        return tuple(found)

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of strings."""
        found = self.list(name)
        if not all(type(one) is str for one in found):
            self.wrong(name, "not a list of texts")
        return tuple(found)

    def table(self, name: str, known: Iterable[str] = ()) -> Fields:
        """What lies within."""
        if name not in self._document:
            raise GraphError(f"{self.place}: {name} is missing")
        return Fields(self._document[name], f"{self.place}: {name}", known)

    def tables(self, name: str, known: Iterable[str] = ()) -> tuple[Fields, ...]:
        """A list of tables."""
        names = tuple(known)
        return tuple(Fields(one, f"{self.place}: {name}[{at}]", names) for at, one in enumerate(self.list(name)))


def number(value: Any, place: str, *, is_above_zero: bool = False) -> float:
    """A value as a number of zero or more, or above it. Raises `GraphError`."""
    found = _float(value)
    if not 0 <= found < math.inf or (is_above_zero and not found):
        raise GraphError(
            f"{place} is {_shown(value)}, not a number {'above zero' if is_above_zero else 'of zero or more'}"
        )
    return found


def _float(value: Any) -> float:
    try:
        return float(value) if type(value) in (int, float) else math.nan
    except OverflowError:
        return math.inf


def read_text(path: Path) -> str:
    """Of a file, without the mark that some editors put in front. Raises `GraphError` if it is none, or `OSError`."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise GraphError(f"{path} is no text: {error}") from None


def parsed(path: Path, called: str, parse: Callable[[str], Any]) -> Any:
    """The text of a file, parsed. Raises `GraphError` where `parse` raises `ValueError`, and for what is no text; or `OSError`."""
    try:
        return parse(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise GraphError(f"{path} is not {called}: {error}") from None


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"
