"""Handler for `functools.lru_cache`: the remembered results of a function of the script's own.

A cache is state: without it a function that draws random numbers, or counts, would be called once more after a resume.
"""

from __future__ import annotations

import functools
import gc
import types
from typing import Any, ClassVar

from detrain.errors import CaptureError, RestoreError
from detrain.state.fields import Holds
from detrain.state.handler import CannotBuild, Capturing, Handler, Restoring, mark_not_saved
from detrain.state.registry import register
from detrain.state.tree import Node
from detrain.state.user_code import is_user_module

Cache = type(functools.lru_cache(lambda: None))


class CacheHandler(Handler):
    """Arguments and results, the least recently used first. The counts of hits and misses begin anew."""

    kind = "cache"
    is_dropped_silently = True
    fields: ClassVar = {"function": Holds.ONE, "seq": Holds.LIST}
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        if not is_user_module(obj.__module__):
            mark_not_saved(node, "a library's cache", warns=False)
            return
        node["function"] = walk.child(obj.__wrapped__, "")
        node["seq"] = walk.children(part for call in _entries(obj) for part in call)

    def matches(self, live: Any, node: Node, restore: Restoring) -> bool:
        return super().matches(live, node, restore) and live.__wrapped__ is restore.value(
            node["function"], live.__wrapped__
        )

    def build(self, node: Node, restore: Restoring) -> Any:
        raise CannotBuild("a cache of results is made with its function")

    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        parts = restore.values(node["seq"], [part for call in _entries(obj) for part in call])
        entries = list(zip(parts[::3], parts[1::3], parts[2::3], strict=True))
        function = obj.__wrapped__
        if entries and type(function) is not types.FunctionType:
            raise RestoreError(f"{restore.path_of(node)}: only the cache of a Python function can be filled again")
        restore.afterwards(lambda: _refill(obj, function, entries))


def _entries(cache: Any) -> list[tuple[tuple[Any, ...], dict[str, Any], Any]]:
    """Positional arguments, named arguments and result of every call that is remembered.

    Only `gc.get_referents` shows them: the type, then key, result and link type of each entry of a bounded
    cache in the order of their use, the dict (key to result if the cache is unbounded), the function, and the mark that stands between
    positional and named arguments in a key (Modules/_functoolsmodule.c, `lru_cache_tp_traverse`, the same from 3.11 to 3.13).
    """
    count = cache.cache_info().currsize
    if not count:
        return []
    shown = gc.get_referents(cache)
    is_bounded = cache.cache_info().maxsize is not None
    place = 1 + 3 * count if is_bounded else 1
    if len(shown) < place + 3 or type(shown[place]) is not dict or shown[place + 1] is not cache.__wrapped__:
        raise CaptureError("this Python does not show what is in an lru_cache")
    pairs = list(zip(shown[1:place:3], shown[2:place:3], strict=True)) if is_bounded else list(shown[place].items())
    is_typed = cache.cache_parameters()["typed"]
    return [(*_arguments(key, shown[place + 2], is_typed=is_typed), result) for key, result in pairs]


def _arguments(key: Any, mark: object, *, is_typed: bool) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The call that a key stands for: positional arguments, then the mark and named ones, then the types of all."""
    if type(key) is not tuple:
        return (key,), {}
    place = next((number for number, value in enumerate(key) if value is mark), None)
    if place is None:
        return key[: len(key) // 2] if is_typed else key, {}
    num_named = (len(key) - 1 - 2 * place) // 3 if is_typed else (len(key) - 1 - place) // 2
    named = key[place + 1 : place + 1 + 2 * num_named]
    return key[:place], dict(zip(named[::2], named[1::2], strict=True))


def _refill(cache: Any, function: types.FunctionType, entries: list[tuple[Any, ...]]) -> None:
    """Call the cache once for each entry, with the function's code replaced by one that returns the saved result."""
    cache.cache_clear()
    plain = function.__code__
    empty = _RETURNS_ITS_CONSTANT.__code__.replace(co_freevars=plain.co_freevars)
    try:
        for args, named, result in entries:
            function.__code__ = empty.replace(co_consts=(result,))
            cache(*args, **named)
    finally:
        function.__code__ = plain


_RETURNS_ITS_CONSTANT = lambda *_, **__: None  # noqa: E731 - its only constant is replaced


register(CacheHandler(), Cache)
