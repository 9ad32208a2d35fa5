"""Lets passes over a shuffled data set that is repeated be shuffled alike in every run, though threads read it ahead.

What such a data set is made of is begun again by whichever thread comes to the end of one repetition, and that draws from the generator
of seeds that all passes over the data set share. A thread of an earlier pass that reads ahead (`prefetch`, which TensorFlow also adds by
itself, or `num_parallel_calls`) draws before or after the next pass begins, as the machine has time for it: plain TensorFlow gives several
outcomes. So each pass but the first begins where no earlier one can have come to, at the next multiple of `STRIDE` numbers.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tensorflow.python.data.ops import concatenate_op, random_op, repeat_op, shuffle_op

from detrain.adapters.tensorflow import generators
from detrain.adapters.tensorflow.dataset_passes import num_generators, parts_of, seeded_parts_of
from detrain.messages import warn

#: Numbers of a generator that a pass has for itself; a repetition takes two. TensorFlow draws all that it skips, 5 ns for each.
STRIDE = 4096
#: Numbers that threads may have drawn ahead of the script.
_MARGIN = 64
_ADVICE = "Two runs may give other bits: give each pass a data set of its own, or let go of one iterator before the next is asked"
#: Data sets that begin with what they are made of at any time, or several times.
AT_ANY_TIME = (repeat_op._RepeatDataset, concatenate_op._ConcatenateDataset)


def begins_at_any_time(dataset: Any) -> bool:
    """True if a pass over a data set may begin another over a part that shuffles at any time.

    Where nothing repeats such a part, and none comes after another, all of them begin with the first element.
    """
    repeating = (one for one in parts_of(dataset) if isinstance(one, AT_ANY_TIME))
    return any(num_generators(part) for one in repeating for part in parts_of(one))


class Places:
    """Where in its generator of seeds the latest pass over each part has begun that some pass may begin at any time."""

    def __init__(self) -> None:
        self._starts: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        #: Parts whose generator nobody can read, and over which a pass has begun.
        self._begun: weakref.WeakSet[Any] = weakref.WeakSet()
        self._said: set[str] = set()
        self._is_put_back = False

    def begin(self, dataset: Any) -> None:
        """A pass over a data set is about to begin: its generators are put where no earlier pass can have come to."""
        if self._is_put_back:
            return
        for part in self._parts_in(dataset):
            if not generators.is_known(part):
                if part in self._begun:
                    self.warn_once(
                        "threads decide where another pass begins over a shuffled and repeated data set that a graph has made"
                    )
                self._begun.add(part)
                continue
            drawn = generators.read(part)
            if drawn:
                if not self._is_certain(part, drawn):
                    self.warn_once(
                        "threads decide where the next pass over a shuffled data set begins that is repeated so often"
                    )
                self._starts[part] = self._after(part, drawn)
                generators.write(part, self._starts[part])

    def of(self, dataset: Any) -> list[Any]:
        """The parts of a data set that have such places."""
        return [part for part in seeded_parts_of(dataset, is_cached=False) if part in self._starts]

    def told(self, dataset: Any, drawn: int) -> int:
        """The same place in every run, for a generator from which `drawn` numbers have been taken and which no pass takes from any more."""
        if dataset not in self._starts or not drawn:
            return drawn
        return self._after(dataset, drawn) - STRIDE + 1

    def know(self, dataset: Any, start: int | None) -> None:
        """What `start_of` has said in another attempt."""
        if start is not None:
            self._starts[dataset] = start

    def start_of(self, dataset: Any) -> int | None:
        """Where the latest pass has begun. None if no pass may begin another at any time."""
        return self._starts.get(dataset)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Passes that begin within it begin where the generators are."""
        before, self._is_put_back = self._is_put_back, True
        try:
            yield
        finally:
            self._is_put_back = before

    def warn_once(self, what: str) -> None:
        """Say what threads decide."""
        if what not in self._said:
            self._said.add(what)
            warn("two-passes", f"{what}. {_ADVICE}")

    def _after(self, part: Any, drawn: int) -> int:
        start = self._starts[part]
        return start + ((drawn - start) // STRIDE + 1) * STRIDE

    def _is_certain(self, part: Any, drawn: int) -> bool:
        """False if threads decide which multiple comes next: a pass has taken more than its share, and has just come to the end of it."""
        taken = drawn - self._starts[part]
        return taken < STRIDE - _MARGIN or _MARGIN <= taken % STRIDE < STRIDE - _MARGIN

    def _parts_in(self, dataset: Any) -> list[Any]:
        for one in parts_of(dataset, is_cached=False):
            if isinstance(one, AT_ANY_TIME):
                for part in seeded_parts_of(one, is_cached=False):
                    if _changes(part):
                        self._starts.setdefault(part, 0)
        return self.of(dataset)


def _changes(part: Any) -> bool:
    """False for a data set with a generator of seeds all of whose passes are alike."""
    if isinstance(part, random_op._RandomDataset):
        return bool(part._rerandomize)
    return not isinstance(part, shuffle_op._ShuffleDataset) or part._reshuffle_each_iteration is not False
