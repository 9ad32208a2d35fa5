"""Data loaders that a script calls by itself and whose state cannot be written down: their calls are counted, and made again.

inst.info names such a loader and its method (`ON_CUSTOM`, not `persistent`). From the first iteration of the nest on, each call is
noted with its arguments; a checkpoint holds the list, and a resume makes the calls that the set-up code has not made by itself.
"""

from __future__ import annotations

import functools
import gc
import random
import sys
import threading
import types
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from detrain.errors import RestoreError
from detrain.session import progress
from detrain.session.messages import warn

if TYPE_CHECKING:  # they load numpy, which a script that trains has loaded by the time they are needed
    from detrain.state.tree import Node, Tree
    from detrain.state.walk import Walk

#: One run of equal calls: arguments, keyword arguments, what came out ("" or an exception's name), how often.
Run = list[Any]


class Loading:
    """The calls of one attempt."""

    def __init__(self, extra: Mapping[str, Any], states: Callable[[], Any]) -> None:
        is_custom = extra.get("loop_type", {}).get("type") == "ON_CUSTOM"
        loaders = extra.get("dataloaders") or [extra.get("dataloader", {})]
        replayed = [tuple(one["next"]) for one in loaders if is_custom and one and not one["persistent"]]
        self._methods = [one for one in replayed if "." in one[1]]
        self._states = states  # of the process-wide generators of random numbers
        self._classes: dict[type, str] = {}  # to the name of the method that is called
        self._logs: dict[int, tuple[Any, list[Run]]] = {}  # by id; holds the object, so that no id is used twice
        self._obstacles: dict[int, str] = {}
        self._judged: set[int] = set()
        self._left: dict[int, str] = {}
        self._is_asked = False
        self._is_told = False

    def begin(self) -> None:
        """The training begins: the classes exist now, and calls count from here on."""
        for module_name, attribute in self._methods:
            module: Any = sys.modules.get(module_name) or sys.modules["__main__"]
            owner_name, _, name = attribute.rpartition(".")
            owner: Any = functools.reduce(lambda one, part: getattr(one, part, None), owner_name.split("."), module)
            if not isinstance(owner, type) or not isinstance(owner.__dict__.get(name), types.FunctionType):
                warn(
                    "loader-not-found",
                    f"inst.info names {module_name}.{attribute} as what gives the batches; there is no such method",
                )
                continue
            self._classes[owner] = name
            # By type, not isinstance: that asks proxies for their __class__, which runs code of theirs.
            self._logs.update((id(one), (one, [])) for one in gc.get_objects() if issubclass(type(one), owner))
            setattr(owner, name, self._counted(owner.__dict__[name]))

    def _counted(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(plain)
        def call(owner: Any, *args: Any, **kwargs: Any) -> Any:
            self._is_asked = True
            before = self._states()
            outcome = "BaseException"
            try:
                result = plain(owner, *args, **kwargs)
                outcome = ""
                return result
            except Exception as error:
                outcome = type(error).__qualname__
                raise
            finally:
                self._note(owner, args, kwargs, outcome)
                if self._states() != before:
                    self._obstacles[id(owner)] = (
                        "its calls draw from the process-wide generators, so they cannot be made again"
                    )

        return call

    def _note(self, owner: Any, args: tuple[Any, ...], kwargs: dict[str, Any], outcome: str) -> None:
        from detrain.state.tree import encode_value, is_value

        runs = self._logs.setdefault(id(owner), (owner, []))[1]
        named = tuple(sorted(kwargs.items()))
        if not is_value(args) or not is_value(named):
            self._obstacles[id(owner)] = (
                "its calls take arguments that are not plain values, so they cannot be made again"
            )
            return
        call = [encode_value(args), encode_value(named), outcome]
        if runs and runs[-1][:3] == call:
            runs[-1][3] += 1
        else:
            runs.append([*call, 1])

    def batch_loaded(self, place: str) -> None:
        """A batch's loading call should have been made; says once if it was not."""
        if not self._is_asked and not self._is_told and self._methods:
            self._is_told = True
            names = ", ".join(".".join(one) for one in self._methods)
            warn(
                "loader-not-asked",
                f"inst.info says that {names} gives each batch, but at {place} it has not been called",
            )
        self._is_asked = False

    # --- state -------------------------------------------------------------------------------------------------------------

    @property
    def left(self) -> dict[int, str]:
        """By `id`: the loaders whose calls are made again, which a capture therefore leaves alone, and why."""
        for owner, _ in self._logs.values():
            self._judge(owner)
        return self._left

    def _judge(self, owner: Any) -> None:
        """Decide once whether a loader can be captured; if not, its calls are all that is kept of it."""
        if id(owner) in self._judged:
            return
        self._judged.add(id(owner))
        if not is_capturable(owner):
            self._left[id(owner)] = "its calls are made again"

    def mark(self, walk: Walk) -> None:
        """Write the calls into the nodes of the loaders that were left alone."""
        for identity in self._left:
            number = walk.numbers.get(identity)
            if number is None:
                continue
            node = walk.tree.nodes[number]
            node["calls"] = [list(run) for run in self._logs[identity][1]]
            if identity in self._obstacles:
                node.update(kept=self._obstacles[identity], loud=True)

    def owns(self, thread: threading.Thread) -> bool:
        """True for a thread that serves a loader whose calls are made again."""
        target = getattr(thread, "_target", None)
        owners = [self._logs[identity][0] for identity in self._left]
        return any(getattr(target, "__self__", None) is one or thread in vars(one).values() for one in owners)

    def replay(self, tree: Tree, live: Mapping[str, Any]) -> None:
        """Make the calls that a checkpoint's loaders had answered and that have not been made yet in this attempt."""
        saved = [(tree.path(number), node) for number, node in enumerate(tree.nodes) if "calls" in node]
        if not saved:
            return
        from detrain.state.walk import Walk

        walk = Walk(leave=self.left)
        for name, value in live.items():
            walk.root(name, value)
        walk.run()
        objects = {path.removeprefix("."): obj for path, obj in zip(walk.paths, walk.objects, strict=True)}
        for path, node in saved:
            if not isinstance(objects.get(path), tuple(self._classes)):
                raise RestoreError(f"{path} is the data loader whose calls are to be made again, and is not there")
            self._call_again(objects[path], path, node)

    def _call_again(self, owner: Any, path: str, node: Node) -> None:
        from detrain.state.tree import decode_value

        method = next(name for cls, name in self._classes.items() if isinstance(owner, cls))
        calls = [run[:3] for run in node["calls"] for _ in range(run[3])]
        done = [run[:3] for run in self._logs.get(id(owner), (owner, []))[1] for _ in range(run[3])]
        if done != calls[: len(done)]:
            raise RestoreError(f"{path} has been called {len(done)} times already, and otherwise than before")
        for number in progress.bar(range(len(done), len(calls)), "replaying"):
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


def is_capturable(value: Any) -> bool:
    """True if a checkpoint can hold all that is reachable from an object, and no thread works on it beside the loop."""
    import detrain.state.load_handlers  # noqa: F401 - registers the handlers
    from detrain.state.objects import OWNS_THREAD
    from detrain.state.walk import Walk

    walk = Walk()
    walk.root("loader", value)
    walk.run()
    return not any(node.get("loud") or node.get("kept") == OWNS_THREAD for node in walk.tree.nodes)


def generator_states(generators: Mapping[str, Any]) -> Any:
    """Something that differs if any of the generators has moved."""
    found: list[Any] = []
    for generator in generators.values():
        if isinstance(generator, random.Random):
            found.append(generator.getstate())
        else:
            state = generator.get_state() if hasattr(generator, "get_state") else generator.bit_generator.state
            found.append(state.numpy().tobytes() if hasattr(state, "numpy") else repr(state))
    return found
