"""Handlers for the iterators of the standard library, and for suspended generators.

The position of an iterator is state like any other. Where an iterator may be replaced (the loop's own, a variable) an equal
one is built; one that sits inside a suspended generator cannot be replaced and is brought to the position in place.
"""

from __future__ import annotations

import array
import collections
import contextlib
import functools
import gc
import inspect
import itertools
import types
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import xxhash

from detrain.errors import RestoreError
from detrain.messages import unheard
from detrain.state import frames, liveness, patches
from detrain.state.classes import type_name
from detrain.state.fields import Holds, plain_fields
from detrain.state.handler import MISSING, CannotBuild, Capturing, Handler, Restoring, mark_not_saved
from detrain.state.handlers.functions import find_code
from detrain.state.registry import register
from detrain.state.tree import Node, decode_value, is_node


def reduce_iterator(obj: Any) -> tuple[Any, ...]:
    """`obj.__reduce__()` of an iterator of the standard library, which from 3.12 warns that 3.14 will drop it."""
    with unheard(DeprecationWarning):
        return obj.__reduce__()  # type: ignore[no-any-return]


_SEQUENCE_ITERATORS: tuple[type, ...] = (
    type(iter([])),
    type(iter(())),
    type(iter("")),
    type(iter(b"")),
    type(iter(bytearray())),
    type(reversed([])),
    type(iter(np.zeros(1))),  # of anything with __getitem__ and no __iter__ of its own
    type(iter(array.array("b"))),
    reversed,  # of anything with __getitem__ and __len__
)
_BACKWARDS = {type_name(type(reversed([]))), type_name(reversed)}
_RANGE_ITERATORS = (type(iter(range(0))), type(iter(range(1 << 100))))
#: `__reduce__` of these lists the elements that are left; only `next` moves them forward.
_DRAINING_ITERATORS: tuple[type, ...] = (
    type(iter({})), type(iter({}.items())), type(iter({}.values())), type(reversed({})), type(reversed({}.items())),
    type(reversed({}.values())), type(iter(set())), type(iter(collections.OrderedDict())),
)  # fmt: skip


def _tee_types() -> tuple[type, type]:
    """The types of an iterator of `itertools.tee`, and of the buffer that its iterators share."""
    side: Any = itertools.tee(())[0]
    return type(side), type(reduce_iterator(side)[2][0])


_COMPOSED_ITERATORS: tuple[Any, ...] = (
    enumerate, zip, map, filter, itertools.islice, itertools.chain, itertools.cycle, itertools.count, itertools.repeat,
    itertools.accumulate, itertools.product, itertools.permutations, itertools.combinations, itertools.starmap,
    itertools.combinations_with_replacement, itertools.zip_longest, itertools.takewhile, itertools.dropwhile, itertools.compress,
    itertools.filterfalse, itertools.groupby, *_tee_types(), type(iter(collections.deque())),
    type(reversed(collections.deque())), type(iter(int, 0)),
)  # fmt: skip


#: Their constructors read what they are made of at once (the length of a deque, the elements that `tee` keeps), so that must be filled.
_LOOK_AT_ONCE = {
    type_name(cls) for cls in (type(iter(collections.deque())), type(reversed(collections.deque())), _tee_types()[1])
}
_OVER_ORDERED = type_name(type(iter(collections.OrderedDict())))
#: `iter(function, sentinel)`, which no name leads to.
_BY_CALLS = type_name(type(iter(int, 0)))


class SequenceIteratorHandler(Handler):
    """An iterator over a list, a tuple or a string: the sequence and an index."""

    kind = "sequence iterator"
    is_dropped_silently = True
    fields: ClassVar = {**plain_fields("index"), "over": Holds.ONE}
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        reduced = reduce_iterator(obj)
        if len(reduced) == 3:
            node["over"] = walk.child(reduced[1][0], ".<sequence>")
            node["index"] = reduced[2]
        # Otherwise it is exhausted and holds nothing.

    def build(self, node: Node, restore: Restoring) -> Any:
        if "over" not in node:
            return iter(())
        over = restore.value(node["over"])
        made = reversed(over) if node["t"] in _BACKWARDS else iter(over)
        # The index is set once the list has its elements: an index beyond the end would be cut.
        restore.afterwards(lambda: made.__setstate__(node["index"]))
        return made

    def matches(self, live: Any, node: Node, restore: Restoring) -> bool:
        if not super().matches(live, node, restore):
            return False
        reduced = reduce_iterator(live)
        if "over" not in node or len(reduced) != 3:
            return "over" not in node
        over = reduced[1][0]
        return restore.value(node["over"], over) is over

    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        if is_new:
            return
        if "over" not in node:
            for _ in obj:
                pass
        else:
            restore.afterwards(lambda: obj.__setstate__(node["index"]))


class RangeIteratorHandler(Handler):
    """An iterator over a range: what is left of it."""

    kind = "range iterator"
    is_dropped_silently = True
    fields: ClassVar = plain_fields("range")
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        left = _range_left(obj)
        node["range"] = [left.start, left.stop, left.step]

    def build(self, node: Node, restore: Restoring) -> Any:
        return iter(range(*node["range"]))

    def matches(self, live: Any, node: Node, restore: Restoring) -> bool:
        if not super().matches(live, node, restore):
            return False
        left, (start, stop, step) = _range_left(live), node["range"]
        if len(range(start, stop, step)) == 0:
            return True
        is_ahead = (start - left.start) % step == 0 and (start - left.start) // step >= 0
        return left.step == step and is_ahead and left[-1:] == range(start, stop, step)[-1:]

    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        left = len(range(*node["range"]))
        skip = len(_range_left(obj)) - left
        if skip > 0:
            next(itertools.islice(obj, skip - 1, None))


def _range_left(obj: Any) -> range:
    """The range that an iterator still has to yield."""
    reduced = reduce_iterator(obj)
    whole: range = reduced[1][0]
    return whole[reduced[2] :] if len(reduced) == 3 and reduced[2] else whole


class DrainingIteratorHandler(Handler):
    """An iterator over a dict or a set: the elements that are left, in order."""

    kind = "draining iterator"
    fields: ClassVar = {"seq": Holds.LIST}
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        node["seq"] = walk.children(reduce_iterator(obj)[1][0])

    def matches(self, live: Any, node: Node, restore: Restoring) -> bool:
        # One over an OrderedDict fails as soon as that has been filled again.
        return super().matches(live, node, restore) and node["t"] != _OVER_ORDERED

    def build(self, node: Node, restore: Restoring) -> Any:
        return iter(restore.values(node["seq"]))

    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        if not is_new:
            for _ in range(len(reduce_iterator(obj)[1][0]) - len(node["seq"])):
                next(obj)


#: How many elements an iterator has given, by type: of those that can be moved forward in place.
_COUNTS: dict[type, Callable[[Any], int]] = {
    enumerate: lambda iterator: reduce_iterator(iterator)[1][1],
    itertools.islice: lambda iterator: reduce_iterator(iterator)[2],
}


class ComposedIteratorHandler(Handler):
    """`enumerate`, `zip`, `islice` and the like: what they are made of.

    A loop's own is built anew at its position. One inside a generator must stay the object that it is: its inner iterators are
    restored in place, and the count of an `enumerate` is reached by `next`, with loaders inside it handing out nothing.
    """

    kind = "composed iterator"
    is_dropped_silently = True
    fields: ClassVar = {"parts": Holds.LIST, "state": Holds.ONE}
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        reduced = reduce_iterator(obj)
        node["parts"] = [walk.child(arg, f".<{i}>" if i else "") for i, arg in enumerate(reduced[1])]
        if len(reduced) > 2:
            node["state"] = walk.child(reduced[2], ".<state>")

    def prepare(self, number: int, node: Node, restore: Restoring) -> None:
        """Take an `enumerate`, an `islice` or a `count` that must stay the object that it is to its number."""
        live: Any = restore.matched(number)
        if type(live) is itertools.count and type(node["parts"][0]) is int:
            self._count_up(live, node["parts"])
        if node["p"] is None or type(live) not in _COUNTS:
            return
        count_of = _COUNTS[type(live)]
        wanted = node["parts"][1] if type(live) is enumerate else node.get("state")
        with stepping(is_silent(node, restore)):
            while isinstance(wanted, int) and count_of(live) < wanted:
                next(live)

    @staticmethod
    def _count_up(live: Any, parts: list[Any]) -> None:
        now = reduce_iterator(live)[1]
        step = now[1] if len(now) > 1 else 1
        if type(now[0]) is int and type(step) is int and step and (parts[0] - now[0]) % step == 0:
            for _ in range((parts[0] - now[0]) // step):
                next(live)

    def build(self, node: Node, restore: Restoring) -> Any:
        return self._make(node, restore, [MISSING] * len(node["parts"]))

    def matches(self, live: Any, node: Node, restore: Restoring) -> bool:
        if not super().matches(live, node, restore):
            return False
        reduced = reduce_iterator(live)
        if len(reduced[1]) != len(node["parts"]):
            return False
        if type(live) is itertools.cycle and not self._is_at(reduced[1][0], restore.tree.nodes[node["parts"][0][1]]):
            return False
        args = [restore.value(ref, old) for ref, old in zip(node["parts"], reduced[1], strict=True)]
        state = restore.value(node["state"], reduced[2] if len(reduced) > 2 else MISSING) if "state" in node else None
        same_args = all(
            new is old or (type(new) is int and new == old) for new, old in zip(args, reduced[1], strict=True)
        )
        return same_args and (state == (reduced[2] if len(reduced) > 2 else None))

    @staticmethod
    def _is_at(live: Any, node: Node) -> bool:
        """False if a `cycle` that has come around is elsewhere; the iterator that its `__reduce__` gives is made for the question."""
        if "index" not in node:
            return True
        return type_name(type(live)) == node["t"] and reduce_iterator(live)[2:] == (node["index"],)

    def _make(self, node: Node, restore: Restoring, live: list[Any]) -> Any:
        if node["t"] in _LOOK_AT_ONCE:
            for ref in filter(is_node, node["parts"]):
                restore.fill_now(ref)
        args = [restore.value(ref, old) for ref, old in zip(node["parts"], live, strict=True)]
        made = (iter if node["t"] == _BY_CALLS else restore.find_type(node))(*args)
        state = restore.value(node["state"]) if "state" in node else None
        if state is not None:  # None is no state, as for `copy`: an `accumulate` would take it for its sum so far
            with unheard(DeprecationWarning):
                made.__setstate__(state)
        return made


def _not_begun(code: Any) -> Any:
    """A generator of some code that nobody may ask for an element: it has no arguments."""
    function = types.FunctionType(code, {}, closure=tuple(types.CellType() for _ in code.co_freevars))
    by_name = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    return function(*[None] * code.co_argcount, **dict.fromkeys(by_name))


class _StepError(RestoreError):
    """A generator has raised something on its way."""


class GeneratorHandler(Handler):
    """A suspended generator: where it stands, its variables, and the iterators of the loops that it is in.

    A generator's frame cannot be made, so restoring takes the live generator of the same code to the same place (one step for
    almost all) and then sets variables and iterators. Whatever that step did to the rest of the state is restored as well.
    """

    kind = "generator"
    fields: ClassVar = {
        **plain_fields("code", "running", "finished", "at", "shape", "passes", "num_args"),
        "function": Holds.ONE,
        "locals": Holds.NAMED,
        "stack": Holds.LIST,
    }
    has_attributes = False
    #: Steps after which a generator that has not come to the saved place is given up.
    max_steps = 10_000_000

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        code = obj.gi_code
        node["code"] = frames.place_of(code)
        if obj.gi_running:
            node["running"] = True
            return
        if obj.gi_frame is None:
            node["finished"] = True
            return
        node["at"] = obj.gi_frame.f_lasti
        node["shape"] = shape_of(code)
        node["passes"] = passes_through(code)
        function = next(
            (part for part in gc.get_referents(obj) if type(part) is types.FunctionType and part.__code__ is code), None
        )
        if (
            function is not None
            and not code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
            and not code.co_kwonlyargcount
        ):
            node["function"] = walk.child(function, ".<function>")
            node["num_args"] = code.co_argcount
        variables = frames.read_locals(obj.gi_frame)
        # Of its arguments one like it may have to be made again.
        dead = liveness.dead_variables(obj.gi_frame) - {*code.co_varnames[: code.co_argcount]}
        node["locals"] = walk.attributes(((k, v) for k, v in variables.items() if k not in dead), "locals")
        walk.dead_attributes(((k, v) for k, v in variables.items() if k in dead), "locals")
        stack = frames.stack_values(obj)
        node["stack"] = [walk.child(value, f".<stack {i}>") for i, value in enumerate(stack)]

    def prepare(self, number: int, node: Node, restore: Restoring) -> None:
        """Its code runs up to the saved place now, so that what that does to other objects is restored after it."""
        if "at" not in node:
            return
        obj = restore.matched(number)
        is_found = obj is not None and obj.gi_frame is not None
        if not is_found:
            obj = self._make(node, restore)
        if obj is None or obj.gi_frame is None or obj.gi_running:
            return
        if obj.gi_frame.f_lasti != node["at"]:
            try:
                comes = self._comes_to_place(obj, node, restore)
            except _StepError as error:
                restore.postpone(number, error)  # it may need what is restored later: a buffer that was empty at first
                return
            if not comes:
                # An abandoned one, if nobody asks it for more.
                restore.give_up(number, f"the generator {node['code'][2]} never reaches the saved position")
                return
            is_found = False
        if not is_found:
            restore.match_again(number, obj)  # now that its variables and iterators are there
        restore.match_stack(number, obj)

    def _make(self, node: Node, restore: Restoring) -> Any:
        """A new generator of the same function and arguments, if those are alive; else None."""
        if "function" not in node:
            return None
        function = restore.value(node["function"])
        if not isinstance(function, types.FunctionType):
            return None
        named = dict(node["locals"])
        refs: list[Any] = [named.get(name) for name in function.__code__.co_varnames[: node["num_args"]]]
        values = [restore.matched(ref[1]) if is_node(ref) else decode_value(ref) for ref in refs]
        if any(value is None and is_node(ref) for value, ref in zip(values, refs, strict=True)):
            return None
        made = function(*values)
        return made if isinstance(made, types.GeneratorType) else None

    def matches(self, live: Any, node: Node, restore: Restoring) -> bool:
        if not super().matches(live, node, restore):
            return False
        return bool(frames.place_of(live.gi_code) == node["code"])

    def build(self, node: Node, restore: Restoring) -> Any:
        if "finished" in node:
            code = find_code(node["code"])
            is_one = code is not None and code.co_flags & inspect.CO_GENERATOR
            made = _not_begun(code) if is_one else (nothing for nothing in list[Any]())
            made.close()
            return made
        raise CannotBuild(f"a suspended generator, {node['code'][2]} of {node['code'][0]}:{node['code'][1]}")

    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        if "running" in node:
            return
        if "finished" in node:
            obj.close()
            return
        self._advance(
            obj, node, restore
        )  # one inside another generator: that has been taken to its place, and so has this
        frame = obj.gi_frame
        stack = frames.stack_values(obj)
        if len(stack) != len(node["stack"]):
            raise RestoreError(f"{restore.path_of(node)}: the generator is at another line than in the checkpoint")
        raw = frames.raw_stack_values(obj)
        for position, (ref, live) in enumerate(zip(node["stack"], stack, strict=True)):
            restored = restore.value(ref, live)
            if restored is live or frames.is_atom(live):
                continue
            redirect = frames.redirect.get(type(raw[position]))
            if redirect is None or not redirect(raw[position], restored):
                raise RestoreError(
                    f"{restore.path_of(node)}: iterator {position} of the generator cannot be set to the saved position"
                )
        live_locals = frames.read_locals(frame)
        values = {name: restore.value(ref, live_locals.get(name, MISSING)) for name, ref in node["locals"]}
        gone = live_locals.keys() - values.keys()
        restore.afterwards(lambda: frames.write_locals(frame, values, gone))

    def _advance(self, obj: Any, node: Node, restore: Restoring) -> None:
        if not self._comes_to_place(obj, node, restore):
            raise RestoreError(
                f"{restore.path_of(node)}: the generator {node['code'][2]} never reaches the saved position"
            )

    def _comes_to_place(self, obj: Any, node: Node, restore: Restoring) -> bool:
        """Step it there. False if it ends before."""
        if shape_of(obj.gi_code) != node.get("shape"):
            raise RestoreError(
                f"{restore.path_of(node)}: the code of the generator {node['code'][2]} has changed, so the saved position in "
                f"it is meaningless; {'leave it as it is' if patches.are_used() else 'has inst.info been changed?'}"
            )
        has_inner = self._has_inner(node, restore)
        with stepping(not has_inner and hands_on(node, restore)):
            for _ in range(self.max_steps):
                is_there = obj.gi_frame is not None and obj.gi_frame.f_lasti == node["at"]
                if is_there and (not has_inner or self._is_in_turn(obj, node, restore)):
                    return True
                try:
                    next(obj)
                except StopIteration:
                    break
                except Exception as error:
                    raise _StepError(
                        f"{restore.path_of(node)}: the generator {node['code'][2]} failed on the way to its saved position: {error!r}"
                    ) from error
        return False

    @staticmethod
    def _has_inner(node: Node, restore: Restoring) -> bool:
        """True if one of several generators is running in a loop over what makes them: which one, only stepping decides."""
        kinds = [restore.tree.nodes[ref[1]]["k"] for ref in node.get("stack", ()) if is_node(ref)]
        return any(pair == (SequenceIteratorHandler.kind, GeneratorHandler.kind) for pair in itertools.pairwise(kinds))

    @staticmethod
    def _is_in_turn(obj: Any, node: Node, restore: Restoring) -> bool:
        """False while the loops over sequences stand before where they stood."""
        for ref, live in zip(node["stack"], frames.stack_values(obj), strict=False):
            index = restore.tree.nodes[ref[1]].get("index") if is_node(ref) else None
            if index is not None and type(live) in _SEQUENCE_ITERATORS and reduce_iterator(live)[2:] < (index,):
                return False
        return True


def shape_of(code: types.CodeType) -> str:
    """Digest of the operations without their arguments: hooks have other names once the loops' parts are known."""
    return xxhash.xxh3_64_hexdigest(code.co_code[::2])


#: Iterators that may be stepped while their loaders hand out None: they look at no element, and run no code at their end.
silent_types = {
    type_name(cls) for cls in (*_SEQUENCE_ITERATORS, *_RANGE_ITERATORS, *_DRAINING_ITERATORS, enumerate, zip, itertools.islice,
                               itertools.count, itertools.repeat)
}  # fmt: skip
#: Called with True before and False after the steps of a generator that passes on its elements unseen: loaders need not load them.
on_blind_steps: list[Callable[[bool], None]] = []


@contextlib.contextmanager
def stepping(is_blind: bool) -> Iterator[None]:
    """A generator is moved for its position only. If `is_blind`, loaders inside it hand out nothing instead of loading."""
    if not is_blind:
        yield
        return
    for listener in on_blind_steps:
        listener(True)
    try:
        yield
    finally:
        for listener in on_blind_steps:
            listener(False)


def took_steps(iterator: Any, count: int) -> int | None:
    """Take a loop's iterator `count` steps from its beginning; returns how many it had, or None if a step does more than count."""
    for done in range(count):
        try:
            next(iterator)
        except StopIteration:
            return done
        if done == 0 and not _is_counting(iterator):
            return None
    return count


def _is_counting(iterator: Any) -> bool:
    """True if an iterator that has begun reads none of its elements, nor do those that it takes from, and none is a loader's."""
    if isinstance(iterator, types.GeneratorType):
        return passes_through(iterator.gi_code) and all(map(_is_counting, frames.stack_values(iterator)))
    if type(iterator) in (enumerate, zip, itertools.islice):
        inner = reduce_iterator(iterator)[1]
        parts = inner[:1] if type(iterator) is not zip else inner
        return all(map(_is_counting, parts))
    return type(iterator) in (*_SEQUENCE_ITERATORS, *_RANGE_ITERATORS, itertools.count, itertools.repeat)


def is_silent(node: Node, restore: Restoring) -> bool:
    """True if a saved iterator may be stepped while loaders hand out None: neither it nor what it takes from reads an element."""
    if node["k"] == GeneratorHandler.kind:
        return "stack" in node and hands_on(node, restore)
    inner = [ref for ref in node.get("parts", ()) if is_node(ref)] if node["k"] == "composed iterator" else []
    return node["t"] in silent_types and all(is_silent(restore.tree.nodes[ref[1]], restore) for ref in inner)


def hands_on(node: Node, restore: Restoring) -> bool:
    """True if a saved generator yields what it takes before it does anything with it, and so do the generators that it takes from."""
    if not node.get("passes"):
        return False
    return all(is_silent(restore.tree.nodes[ref[1]], restore) for ref in node["stack"] if is_node(ref))


@functools.cache
def passes_through(code: types.CodeType) -> bool:
    """True if every loop of a generator yields its element before it does anything else with it.

    Read off the bytecode: after FOR_ITER only a store, loads of the same variable, and the yield.
    """
    import dis

    instructions = [i for i in dis.get_instructions(code) if i.opname not in ("CACHE", "NOP", "EXTENDED_ARG", "RESUME")]
    loops = [n for n, i in enumerate(instructions) if i.opname == "FOR_ITER"]
    return bool(loops) and all(_yields_at_once(instructions[n + 1 : n + 4]) for n in loops)


def _yields_at_once(following: list[Any]) -> bool:
    names = [i.opname for i in following]
    if names[:1] == ["YIELD_VALUE"]:
        return True
    if names[:2] == ["STORE_FAST_LOAD_FAST", "YIELD_VALUE"]:  # 3.13 fuses the two
        first, second = following[0].argval
        return bool(first == second)
    is_store_load = names[:3] in (
        ["STORE_FAST", "LOAD_FAST", "YIELD_VALUE"],
        ["STORE_DEREF", "LOAD_DEREF", "YIELD_VALUE"],
    )
    return is_store_load and following[0].argval == following[1].argval


class CoroutineHandler(Handler):
    """Coroutines and asynchronous generators belong to an event loop."""

    kind = "coroutine"
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        mark_not_saved(node, f"a suspended {type_name(type(obj))}", warns=True)


register(SequenceIteratorHandler(), *_SEQUENCE_ITERATORS)
register(RangeIteratorHandler(), *_RANGE_ITERATORS)
register(DrainingIteratorHandler(), *_DRAINING_ITERATORS)
register(ComposedIteratorHandler(), *_COMPOSED_ITERATORS)
register(GeneratorHandler(), types.GeneratorType)
register(CoroutineHandler(), types.CoroutineType, types.AsyncGeneratorType)
