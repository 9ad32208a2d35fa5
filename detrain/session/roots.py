"""The roots of a run's state: where a capture begins, and how restored roots get back to where they came from.

Roots are the variables of the frames from the loop's up to the module's, the globals of the user's modules, the process-wide generators
of random numbers, the iterators of the loops themselves, and what libraries keep in globals of theirs (`detrain.session.libraries`).
"""

from __future__ import annotations

import csv
import functools
import logging
import sys
import threading
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from detrain.errors import RestoreError
from detrain.loops.running import Loop
from detrain.messages import warn
from detrain.session import progress
from detrain.session.context import Context
from detrain.session.libraries import Libraries, is_name
from detrain.session.replay import Replay, check
from detrain.state import frames, liveness, patches, registry
from detrain.state.captured import Captured
from detrain.state.census import Census
from detrain.state.handler import MISSING
from detrain.state.handlers import csvfiles
from detrain.state.handlers.objects import OWNS_THREAD
from detrain.state.restore import Origins, Restore
from detrain.state.retrace import Retracer
from detrain.state.tree import Ref, Tree, is_node, nodes_below
from detrain.state.user_code import PYTHONS_OWN, user_code, user_modules
from detrain.state.walk import Walk


@dataclass
class Surroundings:
    """What a header sees: the frames that hold variables, outermost first, and the loops around it."""

    frames: list[tuple[str, types.FrameType]]
    modules: list[tuple[str, types.ModuleType]]
    loops: list[Loop]
    #: By the name of its globals in `modules`: the frame of a module whose code runs.
    running: dict[str, types.FrameType]
    libraries: Libraries

    def call_path(self) -> list[list[object]]:
        """Function and file of each frame; a checkpoint can be restored only into the same ones."""
        return [[name, frame.f_code.co_qualname, patches.first_line(frame.f_code)] for name, frame in self.frames]


def find_surroundings(frame: types.FrameType, loop: Loop, context: Context) -> Surroundings:
    """The surroundings of a header; `frame` is the loop's."""
    is_user_file, script_name = context.is_user_file, context.settings.script_name
    found: list[types.FrameType] = []
    running: dict[str, types.FrameType] = {}
    current: types.FrameType | None = frame
    while current is not None:
        if is_user_file(current.f_code.co_filename):
            if frames.is_module_level(current):
                running[_module_name(current.f_globals.get("__name__", "?"), script_name)] = current
            else:
                found.append(current)
        current = current.f_back
    names: dict[str, int] = {}
    named = []
    for one in reversed(found):
        name = f"{_module_name(one.f_globals.get('__name__', '?'), script_name)}.{one.f_code.co_qualname}"
        names[name] = names.get(name, 0) + 1
        named.append((name if names[name] == 1 else f"{name}#{names[name]}", one))
    modules = [
        (_module_name(name, script_name), sys.modules[name])
        for name in ["__main__", *sorted(user_modules - {"__main__"})]
        if name in sys.modules
    ]
    return Surroundings(named, modules, loop.nest, running, context.libraries)


def _module_name(name: str, script_name: str) -> str:
    if name == script_name:
        return f"<module {name}>"  # the script, imported a second time under its own name, or a module of that name
    return script_name if name == "__main__" else name


def live_roots(around: Surroundings, generators: dict[str, object]) -> dict[str, object]:
    """Every root by name, in the order in which they are walked."""
    roots: dict[str, object] = {}
    for prefix, module in around.modules[:1]:
        roots.update(_globals(prefix, module))
    for prefix, frame in around.frames:
        added = patches.added_in(frame.f_code)
        roots.update(
            {f"{prefix}.{name}": value for name, value in frames.read_locals(frame).items() if name not in added}
        )
        roots.update(
            {f"{prefix}.<cell {name}>": cell for name, cell in frames.cells(frame).items() if name not in added}
        )
    for prefix, module in around.modules[1:]:
        roots.update(_globals(prefix, module))
    for number, loop in enumerate(around.loops):
        feed = loop.feed
        iterator = feed.replacement if feed is not None and feed.replacement is not None else loop.iterator
        if iterator is not None and not loop.is_exhausted:
            roots[f"loops[{number}].iterator"] = iterator
    roots.update(_streams())
    roots.update({f"generators.{name}": generator for name, generator in generators.items()})
    roots.update(around.libraries.roots())
    return roots


#: Begins the names of roots that a framework holds for the whole process.
_GIVEN = "given."


def _streams() -> dict[str, object]:
    """Where the script's output goes through objects that no variable of it may name."""
    found: dict[str, object] = {"process.logging": logging.root}
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not getattr(sys, f"__{name}__"):
            found[f"process.{name}"] = stream
    for give in registry.process_roots:
        found.update({f"{_GIVEN}{name}": value for name, value in give().items()})
    return found


def _globals(prefix: str, module: types.ModuleType) -> dict[str, object]:
    added = patches.added_to_module(module)
    return {
        f"{prefix}.{name}": value for name, value in vars(module).items() if not _is_pythons(name) and name not in added
    }


def _is_pythons(name: str) -> bool:
    """True for what Python itself gives a module, or a compiler of Python code keeps there."""
    return name in PYTHONS_OWN or name.startswith(tuple(registry.compiler_globals))


def capture(
    around: Surroundings, context: Context, census: Census | None, retracer: Retracer | None = None
) -> Captured:
    """Walk from the roots, after synchronising devices; arrays in the result are views of live memory.

    `census` is the first capture's, by which this one tells which object went where; None for the first. `retracer` knows the captures
    before, if there is one.
    """
    context.frameworks.wait()
    with context.frameworks.unseen():
        return _capture(around, context.frameworks.generators(), census, context.replay, retracer or Retracer())


def _capture(
    around: Surroundings, generators: dict[str, object], census: Census | None, replay: Replay, retracer: Retracer
) -> Captured:
    roots, dead = live_roots(around, generators), _dead_roots(around)
    alive = {name: value for name, value in roots.items() if name not in dead}
    walk = retracer.walk(alive, {name: value for name, value in roots.items() if name in dead}, census, replay.left)
    walk.tree.roots = {name: walk.tree.roots[name] for name in roots}  # the order in which the script has made them
    for thread in _threads_of_the_script():
        if replay.owns(thread):
            continue
        walk.warn_of_hidden_state(
            f"threads.{thread.name}", "threading:Thread", "a thread of the script runs beside the loop"
        )
    captured = walk.captured()
    _excuse_libraries(captured)
    replay.mark(captured, around.loops[-1].iteration if around.loops else 0)
    for number, loop in enumerate(around.loops):
        _plan_replay(captured, captured.tree.roots.get(f"loops[{number}].iterator"), loop.iteration)
    return captured


def _excuse_libraries(captured: Captured) -> None:
    """An object of C that a library holds in its globals is the library's own, also where `from library import *` brings it here.

    So is whatever cannot be captured of a library's state, and nothing of the script leads to.
    """
    nodes = captured.tree.nodes
    for number, node in enumerate(nodes):
        if not node.get("loud"):
            continue
        top = node
        while top["p"] is not None:
            top = nodes[top["p"]]
        if is_name(top["s"]):
            del captured.tree.own(number)["loud"]
            continue
        if node["k"] != "opaque":
            continue
        name = top["s"].rpartition(".")[2]
        ref = captured.tree.roots.get(top["s"])
        if ref is not None and is_node(ref) and _is_of_library(name, captured.objects[ref[1]]):
            del captured.tree.own(number)["loud"]


def _is_of_library(name: str, value: object) -> bool:
    """True if the module of a library has this global."""
    own = {id(sys.modules[one]) for one in user_modules if one in sys.modules}  # a module may have several names
    return any(
        isinstance(module, types.ModuleType) and id(module) not in own and vars(module).get(name) is value
        for module in list(sys.modules.values())
    )


def _threads_of_the_script() -> list[threading.Thread]:
    """Living threads whose code is the user's own; those of libraries serve, and hold none of the run's numbers."""
    found = []
    for thread in threading.enumerate():
        target = getattr(thread, "_target", None) or getattr(thread, "function", None)
        while isinstance(target, functools.partial):
            target = target.func
        modules = {getattr(target, "__module__", None), type(thread).__module__}
        if (
            thread is not threading.main_thread()
            and thread is not threading.current_thread()
            and modules & user_modules
        ):
            found.append(thread)
    return found


def _plan_replay(captured: Captured, ref: Ref, count: int) -> None:
    """Mark a loop's iterator for replay if something in it cannot be captured: its elements are then fetched again.

    What nothing but the iterator reaches needs no capture any more. An iterator with a thread that reads ahead is neither captured
    nor replayed: nobody knows what else the thread had done by then.
    """
    tree = captured.tree
    if not is_node(ref):
        return
    inside = {ref[1]}
    for number, node in enumerate(tree.nodes):
        if node["p"] in inside:
            inside.add(number)
    threaded = [
        number for number in inside
        if tree.nodes[number].get("kept") == OWNS_THREAD
        or (issubclass(type(captured.objects[number]), threading.Thread) and tree.nodes[number]["k"] != "kept")
    ]  # fmt: skip
    if threaded:
        for number in threaded:
            tree.own(number).update(kept="a thread of its own reads ahead for the loop", loud=True)
    elif any(tree.nodes[number].get("loud") for number in inside):
        line = _line_of(captured.objects[ref[1]])
        if line is None and _is_named_elsewhere(tree, ref[1], inside):
            return  # the loop's body may have taken from it as well
        tree.own(ref[1]).update(replay=count, line=line)
        for number in inside:
            tree.own(number).pop("loud", None)


def _line_of(iterator: object) -> int | None:
    """How many lines a reader of CSV has read; None of anything else."""
    return iterator.line_num if isinstance(iterator, (csvfiles.READER, csv.DictReader)) else None


def _is_named_elsewhere(tree: Tree, number: int, inside: set[int]) -> bool:
    """True if something else than the loop holds its iterator, and may have taken elements from it."""
    roots = [name for name, ref in tree.roots.items() if ref == ["@", number]]
    if len(roots) > 1:
        return True
    return any(number in nodes_below(node) for other, node in enumerate(tree.nodes) if other not in inside)


def _fetch_again(tree: Tree, around: Surroundings) -> None:
    """Fetch again, and drop, the elements that the loop's iterator had handed out by the checkpoint."""
    ref: Ref = tree.roots.get(f"loops[{len(around.loops) - 1}].iterator")
    feed = around.loops[-1].feed
    if not is_node(ref) or feed is None or feed.replacement is None:
        return
    count, line = tree.nodes[ref[1]].get("replay", 0), tree.nodes[ref[1]].get("line")
    for done in progress.bar(range(count if line is None else line), "resuming"):
        if line is not None and (_line_of(feed.replacement) or 0) >= line:
            break
        try:
            next(feed.replacement)
        except StopIteration:
            raise RestoreError(
                f"the loop's iterator ended after {done} elements, and {count} had been taken from it"
            ) from None


def restore(
    tree: Tree, around: Surroundings, generators: dict[str, object], origins: Origins, replay: Replay,
    put_back_files: Callable[[], None], set_aside: Callable[[], str], *, allows_pickle: bool, process: int | None,
    merge: Callable[[Tree, Tree], Tree] | None = None,
) -> list[str]:  # fmt: skip
    """Bring the live program to the state of a tree; returns the leaves that may not be as they were, with the reasons.

    `put_back_files` is called when the script's open files have been flushed and before anything is restored into them, `set_aside` if
    it is found later on that the checkpoint held too little. `merge` is given the tree and that of the live state, and returns what is
    restored in place of the first.
    Raises `RestoreError` naming what cannot be restored.
    """
    around.libraries.expect(tree.roots)
    live = live_roots(around, generators)
    missing = {
        name.removeprefix("generators.") for name in tree.roots if name.startswith("generators.") and name not in live
    }
    if missing:
        raise RestoreError(
            f"the checkpoint contains random number generators that this attempt does not have: {', '.join(sorted(missing))}"
        )
    _fetch_again(tree, around)
    replayed = replay.replay(tree, live)
    captured = _captured(live, replay)
    put_back_files()  # the walk has flushed every file that it has met
    lost = [name.removeprefix(_GIVEN) for name in tree.roots if name.startswith(_GIVEN) and name not in live]
    if lost:
        raise RestoreError(
            f"{', '.join(lost)}: a process-wide hook that the loop installed is missing in this attempt. "
            "Install it before the loop, or use --fresh"
        )
    begin = functools.partial(
        Restore, origins=origins, set_aside=set_aside, allows_pickle=allows_pickle, process=process
    )
    restoring = begin(tree, captured, is_last_time=False)
    if merge is not None:
        restoring.prepare()  # what a generator that has begun holds can be compared with the checkpoint's only in one that has begun
        captured = _captured(live, replay)
        tree = merge(tree, captured.tree)
        restoring = begin(tree, captured, is_last_time=False)
    restored = _restored(restoring, around, live)
    if restoring.has_postponed:
        live = live_roots(around, generators)
        restoring = begin(tree, _captured(live, replay), is_last_time=True)
        restored = _restored(restoring, around, live)
    for number, loop in enumerate(around.loops):
        name = f"loops[{number}].iterator"
        if name not in restored:
            continue
        feed = loop.feed
        if feed is not None and feed.replacement is not None:
            feed.replacement = restored[name]
        elif restored[name] is not live.get(name) and not loop.redirect(restored[name]):
            raise RestoreError(
                f"{name} (the loop at {loop.site.filename}:{loop.site.line}) is running and cannot be set to the saved position"
            )
    check(replayed)
    for remark in restoring.remarks:
        warn(
            "set-order",
            f"{remark}; if the script iterates over it, this resume is not exact: iterate over a list or a dict",
        )
    return restoring.doubtful


def _restored(restoring: Restore, around: Surroundings, live: dict[str, object]) -> dict[str, Any]:
    """The restored roots, of which the variables have been written; the loops' iterators have not."""
    restored = restoring.run(live)
    for prefix, module in around.modules:
        _write_globals(prefix, module, restored, live)
    for prefix, frame in around.frames:
        _write_variables(prefix, frame, restored, live)
    around.libraries.put(restored)
    return restored


def _dead_roots(around: Surroundings) -> set[str]:
    """Names of roots that the script will not read again before it writes them."""
    found: set[str] = set()
    for prefix, frame in around.frames:
        found.update(f"{prefix}.{name}" for name in liveness.dead_variables(frame))
    for prefix, frame in around.running.items():
        dead = liveness.dead_variables(frame)
        read = liveness.read_elsewhere(frame.f_code, user_code.values()) if dead else None
        if read is not None:
            found.update(f"{prefix}.{name}" for name in dead - read)
    return found


def _captured(live: dict[str, object], replay: Replay) -> Captured:
    walk = Walk(leave=replay.left)
    for name, value in live.items():
        walk.root(name, value)
    return walk.run()


def _write_variables(prefix: str, frame: types.FrameType, restored: dict[str, object], live: dict[str, object]) -> None:
    start = f"{prefix}."
    names = {name.removeprefix(start): value for name, value in restored.items() if name.startswith(start)}
    code = frame.f_code
    own = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
    changed = {
        name: value for name, value in names.items() if name in own and live.get(start + name, MISSING) is not value
    }
    here = {name.removeprefix(start) for name in live if name.startswith(start)}
    frames.write_locals(frame, changed, (here & own) - names.keys())


def _write_globals(prefix: str, module: types.ModuleType, restored: dict[str, object], live: dict[str, object]) -> None:
    namespace = vars(module)
    start = f"{prefix}."
    for name in [name for name in namespace if not _is_pythons(name)]:
        if start + name not in restored and start + name in live:
            del namespace[name]
    for path, value in restored.items():
        name = path.removeprefix(start)
        if path.startswith(start) and name.isidentifier() and namespace.get(name, MISSING) is not value:
            namespace[name] = value


def leaves_with_warnings(tree: Tree, *, only_beside: bool = False) -> list[str]:
    """Objects whose state is not in the tree although the loop may have changed it: path, type and reason; or those beside the roots."""
    return [
        f"{tree.path(number)} ({node['t']}): {node['kept']}"
        for number, node in enumerate(tree.nodes)
        if node.get("loud") and (not only_beside or node["k"] == "beside")
    ]
