"""Data loaders that a script calls by itself and whose state cannot be written down: their calls are counted, and replayed.

inst.info names such a loader and its method (`ON_CUSTOM`, not `persistent`). From the first iteration of the nest on, each call is
noted with its arguments; a checkpoint holds the list, and a resume makes the calls that the set-up code has not made by itself.
What else can be seen of the loader must then be what it was.
"""

from __future__ import annotations

import functools
import gc
import json
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import xxhash

from detrain.errors import RestoreError
from detrain.messages import warn
from detrain.session import progress

if TYPE_CHECKING:  # they load numpy, which a script that trains has loaded by the time they are needed
    from detrain.state.captured import Captured
    from detrain.state.tree import Node, Tree


@dataclass
class _Log:
    """The calls of one loader: each entry has arguments, keyword arguments, outcome ("" or an exception's name), and how often."""

    owner: Callable[[], object]  # a weak reference, where the class allows one
    calls: list[list[Any]] = field(default_factory=list)
    is_left: bool = False  # captures leave it alone: it cannot be written down
    obstacle: str = ""  # why its calls cannot be replayed
    answers: str = ""  # digest of all that its calls have returned
    beside: set[str] = field(default_factory=set)  # attributes that its threads have been seen to change

    def record_thread_changes(self, owner: object) -> None:
        """Add the attributes that threads change now; a thread that has ended by the next call is remembered."""
        from detrain.session.loader_threads import changed_beside

        self.beside |= changed_beside(owner)

    def flat(self) -> list[list[Any]]:
        """Every call by itself."""
        return [call[:3] for call in self.calls for _ in range(call[3])]


class Replay:
    """The loaders of one attempt that are replayed."""

    def __init__(self, extra: Mapping[str, Any], states: Callable[[], object]) -> None:
        is_custom = extra.get("loop_type", {}).get("type") == "ON_CUSTOM"
        loaders = extra.get("dataloaders") or [extra.get("dataloader", {})]
        replayed = [tuple(one.get("next", ())) for one in loaders if is_custom and not one.get("persistent", False)]
        self._methods = [one for one in replayed if len(one) == 2 and "." in one[1]]
        self._states = states  # of the process-wide generators of random numbers
        self._classes: dict[type, str] = {}  # to the name of the method that is called
        self._logs: dict[int, _Log] = {}  # by id
        self._depth = 0  # of calls inside calls
        self._is_asked = False
        self._is_bypassed = False

    def begin(self) -> None:
        """The training begins: the classes exist now, and calls count from here on."""
        for module_name, attribute in self._methods:
            module: object = sys.modules.get(module_name) or sys.modules["__main__"]
            owner_name, _, name = attribute.rpartition(".")
            owner: object = functools.reduce(lambda one, part: getattr(one, part, None), owner_name.split("."), module)
            if not isinstance(owner, type) or not isinstance(owner.__dict__.get(name), types.FunctionType):
                warn(
                    "loader-not-found",
                    f"inst.info names {module_name}.{attribute} as the method that returns the batches, but there is no such method",
                )
                continue
            self._classes[owner] = name
            # By type, not isinstance: that asks proxies for their __class__, which runs code of theirs.
            for one in gc.get_objects():
                if issubclass(type(one), owner):
                    self._log_of(one)
            setattr(owner, name, self._counted(owner.__dict__[name]))

    def _log_of(self, owner: object) -> _Log:
        log = self._logs.get(id(owner))
        if log is None or log.owner() is not owner:
            try:
                reference: Callable[[], object] = weakref.ref(owner)
            except TypeError:

                def reference() -> object:
                    return owner

            log = self._logs[id(owner)] = _Log(reference)
        return log

    def _alive(self) -> Iterator[tuple[object, _Log]]:
        for log in list(self._logs.values()):
            owner = log.owner()
            if owner is not None:
                yield owner, log

    def _counted(self, plain: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(plain)
        def call(owner: object, *args: object, **kwargs: object) -> object:
            self._is_asked = True
            if self._depth:
                return plain(owner, *args, **kwargs)  # a part of the call around it, and replayed with that
            before, outcome, result = self._states(), "BaseException", None
            self._depth += 1
            try:
                result = plain(owner, *args, **kwargs)
                outcome = ""
                return result
            except Exception as error:
                outcome = type(error).__qualname__
                raise
            finally:
                self._depth -= 1
                self._record_call(owner, args, kwargs, outcome, result, is_drawing=self._states() != before)

        return call

    def _record_call(
        self,
        owner: object,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        outcome: str,
        result: object,
        *,
        is_drawing: bool,
    ) -> None:
        from detrain.state.tree import encode_value, is_value

        log = self._log_of(owner)
        if not log.answers:
            log.record_thread_changes(owner)
        log.answers = answer_digest(log.answers, outcome, result, owner)
        named = tuple(sorted(kwargs.items()))
        if is_drawing:
            log.obstacle = "its calls draw from the process-wide generators, so they cannot be replayed"
        if not is_value(args) or not is_value(named):
            log.obstacle = "its calls take arguments that are not plain values, so they cannot be replayed"
            return
        call = [encode_value(args), encode_value(named), outcome]
        if log.calls and log.calls[-1][:3] == call:
            log.calls[-1][3] += 1
        else:
            log.calls.append([*call, 1])

    def batch_loaded(self, place: str) -> None:
        """A batch's loading call should have been made; says once if it was not."""
        if not self._is_asked and not self._is_bypassed and self._classes:
            self._is_bypassed = True
            names = ", ".join(".".join(one) for one in self._methods)
            warn(
                "loader-not-asked",
                f"inst.info says that {names} gives each batch, but at {place} it has not been called. The loader cannot be replayed",
            )
        self._is_asked = False

    # --- state -------------------------------------------------------------------------------------------------------------

    @property
    def left(self) -> dict[int, str]:
        """By `id`: the loaders that a capture leaves alone because their calls are replayed, and why."""
        for owner, log in self._alive():
            log.is_left = log.is_left or not is_capturable(owner)
        return {id(owner): "its calls are replayed" for owner, log in self._alive() if log.is_left}

    def mark(self, captured: Captured, num_batches: int) -> None:
        """Write the calls into the nodes of the loaders that were left alone."""
        for owner, log in self._alive():
            number = captured.numbers.get(id(owner))
            if number is None or not log.is_left:
                continue
            why = log.obstacle
            if self._is_bypassed or (num_batches > 0 and not log.calls):
                why = why or "its calls were not seen, so they cannot be replayed"
            node = captured.tree.own(number)
            node["calls"] = [list(call) for call in log.calls]
            log.record_thread_changes(owner)
            node["digest"] = digest_without(owner, log.beside)
            if log.beside:
                node.update(beside=sorted(log.beside), answers=log.answers)
            if why:
                node.update(kept=why, loud=True)

    def owns(self, thread: threading.Thread) -> bool:
        """True for a thread that serves a loader whose calls are replayed."""
        from detrain.session.loader_threads import attributes_of

        target = getattr(getattr(thread, "_target", None), "__self__", None)
        for owner, log in self._alive():
            held = (value for _, value in attributes_of(owner))
            if log.is_left and (target is owner or any(value is thread for value in held)):
                return True
        return False

    def replay(self, tree: Tree, live: Mapping[str, object]) -> list[tuple[str, object, Node]]:
        """Make the calls that a checkpoint's loaders had answered and that have not been made yet in this attempt.

        Returns path, loader and node of those that must be as they were once all is restored. A loader that is not there yet is
        made in the body that follows, and is none of this checkpoint's.
        """
        from detrain.state.walk import Walk

        saved = [(tree.path(number), node) for number, node in enumerate(tree.nodes) if "calls" in node]
        if not saved:
            return []
        walk = Walk(leave=self.left)
        for name, value in live.items():
            walk.root(name, value)
        captured = walk.run()
        objects = {captured.path(number): obj for number, obj in enumerate(captured.objects)}
        there = [
            (path, node, objects[path]) for path, node in saved if isinstance(objects.get(path), tuple(self._classes))
        ]
        for path, node, owner in there:
            self._call_again(owner, path, _Log(lambda: None, node["calls"]).flat(), node.get("answers"))
            self._log_of(owner).beside.update(node.get("beside", ()))
        return [(path, owner, node) for path, node, owner in there]

    def _call_again(self, owner: object, path: str, calls: list[list[Any]], answers: str | None) -> None:
        from detrain.state.tree import decode_value

        method = next(name for cls, name in self._classes.items() if isinstance(owner, cls))
        done = self._log_of(owner).flat()
        if done != calls[: len(done)]:
            raise RestoreError(
                f"{path} has been called {len(done)} times in set-up already, with other arguments than in the killed run"
            )
        for number in progress.bar(range(len(done), len(calls)), "resuming"):
            args, named, outcome = calls[number]
            try:
                getattr(owner, method)(*decode_value(args), **dict(decode_value(named)))
                now = ""
            except Exception as error:  # noqa: BLE001 - what it was is compared with what it was before
                now = type(error).__qualname__
            if now != outcome:
                raise RestoreError(
                    f"call {number} of {path} ended with {now or 'a batch'}, and with {outcome or 'a batch'} before"
                )
        if answers is not None and self._log_of(owner).answers != answers:
            raise RestoreError(
                f"{path} has threads, and its {len(calls)} calls have not returned what they returned before: its threads, or "
                "something else that changes it, do not behave the same every time. This resume cannot be exact"
            )


def check(replayed: list[tuple[str, object, Node]]) -> None:
    """Raises `RestoreError` if a loader is not what it was when its calls had been made the first time."""
    for path, owner, node in replayed:
        if digest_without(owner, set(node.get("beside", ()))) != node["digest"]:
            raise RestoreError(
                f"{path} differs from its state at the checkpoint although its calls have been replayed: something else changes it as "
                "well. Its state cannot be captured either, so this resume cannot be exact"
            )


def digest_of(value: object) -> str:
    """xxh3-64 of all that can be captured of an object, in hex."""
    return _digest(_captured(value).tree)


def digest_without(owner: object, beside: set[str]) -> str:
    """Digest of a loader without the attributes `beside`, which its threads may change at any time."""
    from detrain.session.loader_threads import attributes_of

    if not beside:
        return digest_of(owner)
    compared = {name: value for name, value in sorted(attributes_of(owner)) if name not in beside}
    return _digest(_captured([type(owner), compared], {id(owner): "the loader"}).tree)


def answer_digest(before: str, outcome: str, result: object, owner: object) -> str:
    """Digest of one more call's answer and of those before."""
    tree = _captured(result, {id(owner): "the loader"}).tree
    return xxhash.xxh3_64(f"{before} {outcome} {_digest(tree)}".encode()).hexdigest()


def _captured(value: object, leave: Mapping[int, str] = types.MappingProxyType({})) -> Captured:
    import detrain.state.handlers.standard  # noqa: F401 - registers the handlers
    from detrain.state.walk import Walk

    walk = Walk(leave=leave)
    walk.root("value", value)
    return walk.run()


def _digest(tree: Tree) -> str:
    state = xxhash.xxh3_64(json.dumps([tree.roots, tree.nodes], sort_keys=True).encode())
    for array in tree.arrays:
        state.update(array.compute_digest().encode())
    return state.hexdigest()


def is_capturable(value: object) -> bool:
    """True if a checkpoint can hold all that is reachable from an object, and no thread changes it during the loop."""
    from detrain.session.loader_threads import is_threaded

    captured = _captured(value)
    if is_threaded(captured):
        return False  # how far it has read is unknown
    return not any(node.get("loud") for node in captured.tree.nodes)
