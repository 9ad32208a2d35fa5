"""Loops while they run: which are active, where each of them is.

A `for` loop's iterable is handed back to the interpreter inside a chain of C iterators: before each element it asks the `Loop`
(so that a loop's header is where state is saved and restored), then the user's own iterator. No frame of ours is on the stack
while the user's iterator runs, so its tracebacks are its own.
"""

from __future__ import annotations

import gc
import itertools
import sys
import types
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from threading import get_ident
from time import monotonic  # the plain one, which is quicker than what takes its place for the script
from typing import Any, Protocol

from detrain.loops.position import Position
from detrain.messages import unheard
from detrain.state import frames as state_frames

#: What has a length that no code of the script's tells.
_SIZED = frozenset({range, list, tuple})


class Ending(Protocol):
    """Where headers say that a batch has ended: the losses of the attempt, which count the batches since they were recorded."""

    num_batches: int

    @property
    def running(self) -> list[Any]:
        """The losses of the batch that runs."""

    def keep_running(self, batches: int) -> None:
        """`batches` have ended, the last of them with losses."""


class Quiet:
    """The headers at which nothing can fall due, so that they only count: those of `loop`, None if there are no such.

    They end when so many batches have begun, or at a moment of the monotonic clock. Every batch pays for what is done here. Within these
    batches no update is of interest; of gradients, if the training's own `thread` computes them, only the losses, for `losses.running`.
    """

    __slots__ = ("loop", "losses", "position", "thread", "until_batch", "until_s")

    def __init__(self, position: Position, losses: Ending) -> None:
        self.position, self.losses, self.thread = position, losses, get_ident()
        self.loop: Loop | None = None
        self.until_batch = self.until_s = 0.0

    def counts(self, loop: Loop) -> bool:
        """True if nothing falls due at the header where this loop is: then its batch has been counted."""
        position = self.position
        if self.loop is not loop or position.batches >= self.until_batch or monotonic() >= self.until_s:
            return False
        self.losses.num_batches += 1
        if self.losses.running:
            self.losses.keep_running(position.batches)
        position.batches = position.counter.value = position.batches + 1  # as in `Position.begin_batch`
        position.batch_in_epoch += 1
        return True

    def counts_while(self, line: int, frame: types.FrameType, stack: Stack) -> bool:
        """The same where the condition of the `while` loop at this line is about to be evaluated; then its iteration has been counted too.

        All of `counts` stands here once more: each call takes a tenth of what this does.
        """
        loop, position = self.loop, self.position
        if (
            loop is None
            or loop.frame_address != hash(frame)
            or loop.site.line != line
            or stack.top is not loop
            or get_ident() != self.thread
            or position.batches >= self.until_batch
            or monotonic() >= self.until_s
        ):
            return False
        loop.iteration += 1  # and it has no children: a loop that is entered ends the quiet
        losses = self.losses
        losses.num_batches += 1
        if losses.running:
            losses.keep_running(position.batches)
        position.batches = position.counter.value = position.batches + 1
        position.batch_in_epoch += 1
        return True


class Listener(Protocol):
    """Gets the events of the training's loops: the session of the attempt."""

    quiet: Quiet

    def at_header(self, loop: Loop) -> None:
        """An iteration of one of the training's loops is about to begin."""

    def at_end(self, loop: Loop) -> None:
        """One of the training's loops has used up its iterable, or the condition of a `while` has been false."""


class Stack(Protocol):
    """Where loops say which of them has begun an iteration last: a `LoopStack`."""

    top: Loop | None


@dataclass(eq=False, slots=True)
class Site:
    """One instrumented loop header. `part` is "" until the loop is known to be in a nest."""

    filename: str
    line: int
    end_line: int
    part: str = ""
    is_demoted: bool = False
    is_fixed: bool = False  # the part is inst.info's
    is_followed: bool = False  # another of the training's loops may come in the same iteration of the loop around it
    #: How often it stands in the nest: more than once where the loops are those of a function that calls itself.
    num_in_nest: int = 1
    #: The loop runs within an iteration of itself, deeper than the training does: an evaluation by the same code, say.
    is_within_itself: bool = False

    @property
    def key(self) -> tuple[str, int]:
        """File and line."""
        return self.filename, self.line


class Loop:
    """One entry of a loop. Its iterations count from 0; -1 before the first.

    A `Loop` may outlive the statement that it stands for, so it holds nothing of the script's: the user's iterator belongs to the
    ticker, which lives and dies with the statement.
    """

    __slots__ = (
        "__weakref__", "children", "ended", "finished", "frame_address", "gradient_at", "interrupted", "is_exhausted",
        "is_led_past", "iteration", "length", "listener", "num_modules", "num_updated", "ordinals", "parent", "site", "stack",
        "start_iteration", "start_point", "ticker", "updated_at",
    )  # fmt: skip

    def __init__(
        self, stack: Stack, listener: Listener, site: Site, parent: Loop | None, ordinals: list[int], frame_address: int
    ) -> None:
        self.stack, self.listener = stack, listener
        self.site = site
        self.parent = parent
        #: How many entries of the site came before this one in the present iteration of each loop around it, from the innermost on,
        #: and in the whole attempt.
        self.ordinals = ordinals
        self.frame_address = frame_address
        self.num_modules = len(sys.modules)  # that were loaded when it was entered
        self.iteration = -1
        self.length = -1  # how many iterations it has, where that can be told without running code of the script's
        self.gradient_at = -1  # the last iteration in which gradients were computed
        self.updated_at, self.num_updated = -1, 0  # the last iteration with a weight update, and how many there were
        self.is_exhausted = False
        #: The loop that was on top when this one, beside it, was entered or continued: it may still be running.
        self.interrupted: Loop | None = None
        #: Entries of loops within, at any depth, in the present iteration, by site.
        self.children: dict[Site, int] = {}
        #: The last checkpoint taken at this loop's header (file name), and those that lead past the inner loops that have
        #: ended in the present iteration.
        self.start_point = ""
        self.start_iteration = 0
        self.finished: list[str] = []
        #: The last of the training's loops that has ended in the present iteration, and whether `finished` leads past all of them
        #: without running a batch again.
        self.ended: Site | None = None
        self.is_led_past = True
        self.ticker: weakref.ref[_Ticker] | None = None

    def tick(self) -> bool:
        """An iteration is about to begin; called, at some depth, from the loop's frame. False if a resume has come to the loop's end."""
        self.iteration += 1
        if self.children:
            self.children = {}
            self.finished = []
            self.ended, self.is_led_past = None, True
        stack = self.stack
        if stack.top is not self:
            self._come_to_top(stack)
        if self.site.part:
            self.listener.at_header(self)
        return not self.is_exhausted

    def exhaust(self) -> None:
        """There is no further iteration; called, at some depth, from the loop's frame."""
        self.is_exhausted = True
        if self.site.part:
            self.listener.at_end(self)

    def _come_to_top(self, stack: Stack) -> None:
        """Inner loops have ended; or this loop runs in a generator (a sampler's, say) that feeds the one on top, or is fed by it."""
        loop, beside = stack.top, self.interrupted
        while loop is not None and loop is not self:
            if loop.interrupted is not None and not loop.interrupted.is_within(self):
                beside = loop.interrupted  # what runs beside a loop within, which has ended, runs beside this one
            loop = loop.parent
        self.interrupted = stack.top if loop is None else beside
        stack.top = self

    def is_within(self, outer: Loop) -> bool:
        """True for `outer` itself, too."""
        loop: Loop | None = self
        while loop is not None and loop is not outer:
            loop = loop.parent
        return loop is outer

    def wrap(self, iterable: Iterable[object]) -> Iterator[object]:
        """What the interpreter iterates over in place of `iterable`."""
        if type(iterable) in _SIZED:
            self.length = len(iterable)  # type: ignore[arg-type]
        ticker = _Ticker(self, iterable)
        self.ticker = weakref.ref(ticker)
        return map(next, _headers(ticker), ticker.chain)

    @property
    def feed(self) -> Feed | None:
        """Where a `for` loop's elements come from, while the loop runs; None for a `while` loop."""
        ticker = self.ticker() if self.ticker is not None else None
        return ticker.feed if ticker is not None else None

    @property
    def iterator(self) -> object:
        """The user's iterator of a `for` loop; None before the first element and for a `while` loop."""
        ticker = self.ticker() if self.ticker is not None else None
        return ticker.iterator if ticker is not None else None

    def redirect(self, iterator: object) -> bool:
        """Let a loop that runs go on with another iterator; False if it cannot."""
        ticker = self.ticker() if self.ticker is not None else None
        return ticker is not None and ticker.redirect(iterator)

    def mark(self, name: str) -> None:
        """A checkpoint of this name stands at the loop's header."""
        self.start_point, self.start_iteration, self.finished = name, self.iteration, []
        self.is_led_past = True

    def unmark(self, name: str, before: tuple[str, int]) -> bool:
        """There will be no checkpoint of this name: the one `before` leads here, at that iteration. False if the mark is another by now."""
        if self.start_point != name:
            return False
        self.start_point, self.start_iteration = before
        return True

    @property
    def nest_parent(self) -> Loop | None:
        """The innermost loop of the nest around this one. Others between the two count for nothing: a later attempt does not see them."""
        loop = self.parent
        while loop is not None and not loop.site.part:
            loop = loop.parent
        return loop

    @property
    def ordinal(self) -> int:
        """Of this entry of its site, in the present iteration of the `nest_parent`."""
        number, loop = 0, self.parent
        while loop is not None and not loop.site.part:
            number, loop = number + 1, loop.parent
        return self.ordinals[number]

    @property
    def is_marked(self) -> bool:
        """True if the present iteration can be reached without running an earlier one."""
        return self.start_iteration == self.iteration

    def follow_sibling(self) -> None:
        """The loop is one of the training's: remember which ended before it, as next time its end needs a checkpoint."""
        outer = self.nest_parent
        if outer is not None and outer.ended is not None:
            outer.ended.is_followed = True

    @property
    def is_near(self) -> bool:
        """True if a resume comes to this loop's header, or its end, without running a batch again."""
        loop = self.nest_parent
        while loop is not None and loop.is_marked and loop.is_led_past:
            loop = loop.nest_parent
        return loop is None

    def find_frame(self) -> types.FrameType:
        """The frame of the loop, which is below the caller on the stack."""
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None and address(frame) != self.frame_address:
            frame = frame.f_back
        assert frame is not None, "asked from outside the loop"
        return frame

    def checkpoints_here(self) -> list[str]:
        """Checkpoints through which this loop's present iteration is reached, in order."""
        return [*([self.start_point] if self.start_point else []), *self.finished]

    @property
    def path(self) -> list[Loop]:
        """The active loops down to this one, outermost first."""
        loops: list[Loop] = []
        current: Loop | None = self
        while current is not None:
            loops.append(current)
            current = current.parent
        return loops[::-1]

    @property
    def nest(self) -> list[Loop]:
        """The loops of the training's nest down to this one, outermost first: a run's position."""
        return [loop for loop in self.path if loop.site.part]


def unwrap(wrapped: object) -> object:
    """The user's iterator inside what `Loop.wrap` has made; any other `map` itself."""
    ticker = _ticker_in(wrapped)
    return wrapped if ticker is None else ticker.iterator


def redirect(wrapped: object, iterator: object) -> bool:
    """Let what `Loop.wrap` has made go on with another iterator; False for any other `map`."""
    ticker = _ticker_in(wrapped)
    return ticker is not None and ticker.redirect(iterator)


def _ticker_in(wrapped: object) -> _Ticker | None:
    """The ticker of what `Loop.wrap` has made; None for any other `map`."""
    iterators = [one for part in gc.get_referents(wrapped) for one in (part if isinstance(part, tuple) else (part,))]
    for chain in (one for one in iterators if type(one) is itertools.chain):
        feed = next((one for one in gc.get_referents(chain) if type(one) is Feed), None)
        if feed is not None:
            return feed.loop.ticker() if feed.loop.ticker is not None else None
    return None


#: An iterator without elements: `next(_NONE_LEFT, element)` is the element.
_NONE_LEFT: Iterator[object] = iter(())


def _headers(ticker: _Ticker) -> Iterator[Iterator[object]]:
    """Comes to a header of a `for` loop each time that C code asks, before it fetches the next element.

    A generator, which C code asks in less time than a method; and what is the same as in `Loop.tick` stands here once more.
    """
    loop = ticker.loop
    stack, site, quiet = loop.stack, loop.site, loop.listener.quiet
    position, losses = quiet.position, quiet.losses
    while True:
        if stack.top is not loop:
            loop.tick()
        elif quiet.loop is loop and position.batches < quiet.until_batch and monotonic() < quiet.until_s:
            loop.iteration += 1
            # As in `Quiet.counts` and `Position.begin_batch`, whose calls would take as long as all of this.
            losses.num_batches += 1
            if losses.running:
                losses.keep_running(position.batches)
            position.batches = position.counter.value = position.batches + 1
            position.batch_in_epoch += 1
        elif site.part or loop.children:
            loop.tick()
        else:
            loop.iteration += 1
        yield _NONE_LEFT


class _Ticker:
    """What belongs to a `for` loop while it runs; lives and dies with the statement."""

    __slots__ = ("__weakref__", "chain", "feed", "loop")

    def __init__(self, loop: Loop, iterable: Iterable[object]) -> None:
        self.loop = loop
        self.feed = Feed(loop, iterable)
        self.chain: itertools.chain[object] = itertools.chain.from_iterable(self.feed)

    @property
    def iterator(self) -> object:
        """The iterator that elements come from now; None before the first and after the last."""
        # The chain holds its source and, between the first element and the end, the iterator that it takes from; from 3.12 its type.
        referents = gc.get_referents(self.chain)
        return next((one for one in referents if one is not self.feed and one is not itertools.chain), None)

    def redirect(self, iterator: object) -> bool:
        """Take the next elements from another iterator; False before the first element and after the last."""
        if self.iterator is None:
            return False
        with unheard(DeprecationWarning):  # from 3.12: 3.14 drops it
            self.chain.__setstate__((self.feed, iterator))  # type: ignore[attr-defined]
        return True


class Feed:
    """Gives the chain the user's iterable, then reports that the loop is exhausted."""

    __slots__ = ("_is_over", "iterable", "loop", "replacement")

    def __init__(self, loop: Loop, iterable: Iterable[object]) -> None:
        self.loop, self._is_over = loop, False
        self.iterable = iterable
        #: Set while a run resumes: the iterator at its saved position.
        self.replacement: Iterator[object] | None = None

    def __iter__(self) -> Feed:
        return self

    def __next__(self) -> Iterable[object]:
        if self._is_over:
            raise StopIteration
        loop = self.loop
        if not loop.is_exhausted and self.iterable is not _TAKEN:
            iterable, self.iterable = self.iterable, _TAKEN
            if self.replacement is not None:
                iterable, self.replacement = _Begun(self.replacement), None
            return iterable
        self._is_over = True
        self.iterable = _TAKEN
        loop.exhaust()
        raise StopIteration


class _Begun:
    """Gives an iterator that has been asked for already: many a loader's `__iter__` starts over and returns the loader itself."""

    __slots__ = ("_iterator",)

    def __init__(self, iterator: Iterator[object]) -> None:
        self._iterator = iterator

    def __iter__(self) -> Iterator[object]:
        return self._iterator


_TAKEN: Any = object()
state_frames.unwrap[map] = unwrap
state_frames.redirect[map] = redirect


def innermost_active(top: Loop | None, frame: types.FrameType) -> Loop | None:
    """The innermost loop that is running, seen from `frame`; `top` is the loop that was entered or ticked last."""
    if top is None or is_inside(top, frame):  # as at nearly every call
        return top
    pending = [top]
    seen: set[Loop] = set()
    while pending:
        loop = pending.pop()
        if loop in seen:
            continue
        seen.add(loop)
        if is_inside(loop, frame):
            return loop
        pending += [one for one in (loop.parent, loop.interrupted) if one is not None]
    return None


def is_inside(loop: Loop, frame: types.FrameType) -> bool:
    """True if `frame`, or one that has called it, is in an iteration of the loop."""
    here = loop.frame_address
    caller: types.FrameType | None = frame
    while caller is not None and hash(caller) != here:
        caller = caller.f_back
    if caller is None:
        return False
    site = loop.site
    return site.line <= (caller.f_lineno or 0) <= site.end_line and caller.f_code.co_filename == site.filename


#: Tells frames apart by where they are, as `id` does; `id` raises an audit event, and a Python function may be listening. `hash`, which
#: takes half the time, gives the same of a frame.
address = object.__hash__
