"""Candidates for the data loader: what gives the batch loop something in every iteration, and how large the things are that it holds."""

from __future__ import annotations

import gc
import types
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from detrain.tracer.calls import Called, Calls
from detrain.tracer.probes import Site
from detrain.tracer.sizes import attributes_of, is_c_iterator, measure

if TYPE_CHECKING:
    from detrain.tracer.observer import World


def selves_of(frames: Sequence[types.FrameType], nest: Sequence[Site]) -> list[Any]:
    """The objects whose methods run the loops: a trainer holds the loader, but is none."""
    functions = {(site.filename, site.function) for site in nest}
    found = []
    for frame in frames:
        code = frame.f_code
        if (code.co_filename, code.co_qualname) in functions and code.co_argcount and "." in code.co_qualname:
            found.append(frame.f_locals.get(code.co_varnames[0]))
    return found


def describe(
    calls: Calls, batch: Site, world: World, feeds: Callable[[Hashable], bool | None], trainers: Sequence[Any]
) -> list[dict[str, Any]]:
    """Each candidate as plain data, those first that come first in an iteration."""
    found = []
    for key, called in calls.found.items():
        if called.has_gradient or not called.gives or called.passes_on or any(called.owner is one for one in trainers):
            continue
        if world.is_trained(called.owner):
            continue
        found.append({**_one(key, called, calls, batch, world), "feeds": feeds(key)})
    header = (batch.filename, batch.line)
    if not any(one["is_iterated"] and (one["file_name"], one["line_no"]) == header for one in found):
        containers = [one for one in _iterated(batch.iterator, _passing(calls)) if not isinstance(one, (range, types.GeneratorType))]
        found = [*(_of_container(one, batch, calls, world) for one in containers), *found]
    for one in found:
        del one["_owner"]
    return found


def _one(key: Hashable, called: Called, calls: Calls, batch: Site, world: World) -> dict[str, Any]:
    owner = called.owner
    is_generator_function = called.kind == "generator" and isinstance(owner, types.FrameType)
    if is_generator_function:
        holder: Any = dict(owner.f_locals)
    elif called.kind == "function":
        holder = called.arguments
    else:
        holder = owner
    module = world.name_of(called.module)
    names = _names(called, module, batch, world, _passing(calls))
    full_iterations = range(calls.first_iteration + 1, calls.first_iteration + 1 + max(calls.iterations, 1))
    # What a progress bar asks is asked where the progress bar is.
    asked = called
    while asked.inside in calls.found and calls.found[asked.inside].passes_on:
        asked = calls.found[asked.inside]
    wrapper = None if asked.is_in_loop else (world.name_of(asked.caller[0]), asked.caller[1])
    return {
        **names,
        "kind": called.kind,
        "is_iterated": called.kind in ("next", "generator"),
        "file_name": asked.filename,
        "line_no": asked.line,
        "wrapper": wrapper,
        "times": [called.times.get(number, 0) for number in full_iterations],
        "is_late": called.is_late,
        "order": _order_of(key, calls),
        "inside": _order_of(called.inside, calls),
        "is_known": world.loader_of(called.owner) is not None,
        "is_capturable": world.is_capturable(holder),
        "sizes": measure({"": holder}),
        "_owner": owner,
    }


def _names(called: Called, module: str, batch: Site, world: World, passing: Sequence[Any]) -> dict[str, Any]:
    """`full_name`, `module`, `init`, `iter` and `next` as inst.info wants them."""
    loader = world.loader_of(called.owner)
    if loader is not None:
        home = loader.__module__
        following = (called.module if called.kind == "next" else home, called.qualname)
        return _entry(home, loader.__qualname__, (home, f"{loader.__qualname__}.__iter__"), following)
    attribute = (module, called.qualname)
    owner = called.qualname.rpartition("<locals>.")[2].rpartition(".")[0]
    if called.kind == "function" and owner:  # a static method
        return _entry(module, owner, ("", ""), attribute)
    if called.kind == "function" or isinstance(called.owner, types.FrameType):
        return {"full_name": f"{module}.{called.qualname}", "module": module, "init": attribute, "iter": ("", ""), "next": attribute}
    if called.kind == "generator":
        return _entry(module, owner, attribute, attribute)
    kind = type(called.owner)
    maker = _maker(called, batch, passing) if called.kind == "next" else None
    cls = type(maker) if maker is not None else kind
    name, owner = world.name_of(cls.__module__), cls.__qualname__
    iterate = (name, f"{owner}.__iter__") if called.kind == "next" else ("", "")
    return _entry(name, owner, iterate, attribute)


def _passing(calls: Calls) -> list[Any]:
    """Objects that give what something inside them gives: progress bars."""
    return [called.owner for called in calls.found.values() if called.passes_on]


def _entry(module: str, owner: str, iterate: tuple[str, str], following: tuple[str, str]) -> dict[str, Any]:
    return {
        "full_name": f"{module}.{owner}", "module": module, "init": (module, f"{owner}.__init__"),
        "iter": iterate, "next": following,
    }  # fmt: skip


def _maker(called: Called, batch: Site, passing: Sequence[Any]) -> Any:
    """The object in the loop's header whose iterator this is, where the two are not the same."""
    if called.line != batch.line or called.filename != batch.filename:
        return None
    for one in _iterated(batch.iterator, passing):
        if one is called.owner:
            return None
        if hasattr(type(one), "__iter__"):
            return one
    return None


def _iterated(value: Any, passing: Sequence[Any]) -> Iterator[Any]:
    """What a loop iterates over, through enumerate, zip and the like, and through what passes elements on."""
    pending, seen = [value], 0
    while pending and seen < 32:
        one = pending.pop(0)
        seen += 1
        if one is None:
            continue
        if is_c_iterator(one):
            pending.extend(part for part in _referents(one) if hasattr(type(part), "__iter__"))
        elif any(one is other for other in passing):
            pending.extend(part for _, part in attributes_of(one) if hasattr(type(part), "__iter__"))
        elif not isinstance(one, (str, bytes, int, dict)) or one is value:
            yield one


def _referents(iterator: Any) -> list[Any]:
    found: list[Any] = []
    for one in gc.get_referents(iterator):
        found.extend(one if isinstance(one, tuple) else [one])
    return found


def _of_container(value: Any, batch: Site, calls: Calls, world: World) -> dict[str, Any]:
    """A list, an array, an object with `__getitem__` only, or one whose iterator is made in C."""
    loader = world.loader_of(value)
    kind = loader if loader is not None else type(value)
    module, owner = world.name_of(kind.__module__), kind.__qualname__
    has_iter = hasattr(kind, "__iter__")
    following = "__iter__" if has_iter else "__getitem__"
    return {
        **_entry(module, owner, (module, f"{owner}.__iter__") if has_iter else ("", ""), (module, f"{owner}.{following}")),
        "kind": "container",
        "is_iterated": True,
        "file_name": batch.filename,
        "line_no": batch.line,
        "wrapper": None,
        "times": [1] * max(calls.iterations, 1),
        "is_late": False,
        "feeds": None,
        "order": None,
        "inside": None,
        "is_known": loader is not None,
        "is_capturable": world.is_capturable(value),
        "sizes": measure({"": value}),
        "_owner": value,
    }


def _order_of(key: Hashable, calls: Calls) -> int | None:
    return list(calls.found).index(key) if key is not None and key in calls.found else None
