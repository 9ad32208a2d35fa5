"""Data sets and their iterators.

TensorFlow itself saves and restores an iterator, buffers and all, whose data set holds no state of Python or of a random operation. Any
other iterator counts the elements that it gives, and is brought to its position by taking as many from a new one. Over a data set that
shuffles, as many passes are begun as had begun at the checkpoint; where passes do not tell how often its generator of seeds was asked, the
generator itself is read and set.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from functools import wraps
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf
from tensorflow.python.data.ops import iterator_ops, multi_device_iterator_ops
from tensorflow.python.eager import context

from detrain.adapters.tensorflow import generators
from detrain.adapters.tensorflow.dataset_passes import (
    Dataset,
    is_late,
    is_seeded,
    num_generators,
    parts_of,
    passes,
    seeded_parts_of,
)
from detrain.adapters.tensorflow.read_ahead import Places, begins_at_any_time
from detrain.adapters.tensorflow.replay import Counted, is_stateful, remembers
from detrain.errors import CaptureError, RestoreError
from detrain.state.fields import Holds, plain_fields
from detrain.state.handler import CannotBuild, Capturing, Handler, Restoring
from detrain.state.tree import Node

OwnedIterator = iterator_ops.OwnedIterator
IteratorOfDevices = multi_device_iterator_ops.OwnedMultiDeviceIterator
_TWO_PASSES = (
    "two iterators over a shuffled data set that is repeated are in use at once; whichever of TensorFlow's threads comes first draws the "
    "next seed"
)
#: What an iterator over several devices gives to one of them.
_OF_ONE_DEVICE = (
    multi_device_iterator_ops._PerDeviceGenerator, multi_device_iterator_ops._ReincarnatedPerDeviceGenerator,
)  # fmt: skip


@dataclass(frozen=True)
class _Made:
    """What an iterator over several devices was made of: its data set, the other arguments, and how far generators were before."""

    dataset: Any
    arguments: dict[str, Any]
    begun: list[int] | None


_made_of_devices: weakref.WeakKeyDictionary[Any, _Made] = weakref.WeakKeyDictionary()
_counted: weakref.WeakKeyDictionary[Any, Counted] = weakref.WeakKeyDictionary()
#: Iterators that the script has asked for an element after their last.
_ended: weakref.WeakSet[Any] = weakref.WeakSet()
places = Places()
#: Iterators that were made while threads of another could still draw from the same generators, until they are asked for an element.
_crowded: weakref.WeakSet[Any] = weakref.WeakSet()
#: Those that were asked while such another was there: of both, threads decide what they give.
_racing: weakref.WeakSet[Any] = weakref.WeakSet()


def patch() -> None:
    """Patch iterators: report passes that begin, and count elements where TensorFlow cannot save a position."""
    plain, plain_next = OwnedIterator._create_iterator, OwnedIterator._next_internal
    plain_of_devices = IteratorOfDevices.__init__

    @wraps(plain)
    def create(iterator: Any, dataset: Any) -> None:
        is_eager = context.executing_eagerly()
        if is_eager:
            places.begin(dataset)
        if is_eager and any(map(_is_to_count, parts_of(dataset))):
            _counted[iterator] = Counted(dataset, _begun_before(dataset))
            plain(iterator, _counted[iterator].counting())
        else:
            plain(iterator, _begun_by_the_script(dataset) if is_late(dataset) else dataset)
            iterator._dataset = dataset
        passes.begin(dataset)
        passes.hold(dataset, iterator)
        if is_eager and _others(iterator):
            _crowded.add(iterator)

    @wraps(plain_next)
    def next_or_end(iterator: Any) -> Any:
        if iterator in _crowded:
            _settle(iterator)
        try:
            return plain_next(iterator)
        except StopIteration:
            _ended.add(iterator)
            raise

    @wraps(plain_of_devices)
    def init_of_devices(iterator: Any, dataset: Any = None, *args: Any, **kwargs: Any) -> None:
        is_eager = dataset is not None and context.executing_eagerly()
        if is_eager:
            places.begin(dataset)
        begun = _begun_before(dataset) if is_eager else None
        plain_of_devices(iterator, dataset, *args, **kwargs)
        if dataset is None:
            return
        if is_eager:
            arguments = {
                **dict(zip(("devices", "max_buffer_size", "prefetch_buffer_size"), args, strict=False)),
                **kwargs,
            }
            arguments["devices"] = list(arguments["devices"])
            _made_of_devices[iterator] = _Made(dataset, arguments, begun)
        passes.begin(dataset)
        passes.hold(dataset, iterator)

    OwnedIterator._create_iterator = create
    OwnedIterator._next_internal = next_or_end
    IteratorOfDevices.__init__ = init_of_devices


def _is_to_count(part: Any) -> bool:
    """True for a part of whose state TensorFlow saves nothing."""
    return is_stateful(part) or isinstance(part, _OF_ONE_DEVICE)


def _begun_by_the_script(dataset: Any) -> Any:
    """The same, but nothing is asked of its parts before the script asks for an element."""
    options = tf.data.Options()
    options.experimental_warm_start = False
    return dataset.with_options(options)


def _begun_before(dataset: Any) -> list[int] | None:
    """Of each part with a generator of seeds: the passes so far; where passes do not tell, the numbers drawn. None if nothing does."""
    if not is_late(dataset):
        return passes.before(dataset)
    parts = seeded_parts_of(dataset, is_cached=False)
    if not all(map(generators.is_known, parts)) or any(map(_may_still_draw, _holders_of(parts))):
        return None if any(passes.before(dataset)) else []
    return [generators.read(one) for one in parts]


def _holders_of(parts: Iterable[Any]) -> set[Any]:
    """The iterators in use over data sets with these parts, of those of which passes do not tell how often their generators were asked."""
    return {one for part in parts for one in passes.in_doubt.get(part, ())}


def _may_still_draw(iterator: Any) -> bool:
    """True if an iterator may begin another pass over a part that shuffles, at any time: a thread of its own may be ahead of the script."""
    if iterator in _ended:
        return False
    return begins_at_any_time(_dataset_of(iterator))


def _others(iterator: Any) -> set[Any]:
    """The iterators whose threads may draw at any time from the generators of this one."""
    parts = places.of(_dataset_of(iterator))
    return {one for one in _holders_of(parts) if one is not iterator and _may_still_draw(one)}


def _settle(iterator: Any) -> None:
    """An iterator that was made while another was there is asked for its first element: if it is alone now, it is made once more."""
    _crowded.discard(iterator)
    others = _others(iterator)
    if not others:
        iterator._create_iterator(_dataset_of(iterator))
        return
    places.warn_once(_TWO_PASSES)
    _racing.update({iterator} | others)


def _tells(iterator: Any) -> bool:
    """True if an iterator's saved state tells of all generators of seeds."""
    return isinstance(iterator, OwnedIterator) and _holds_generators(_content_of(iterator), _dataset_of(iterator))


def _dataset_of(iterator: Any) -> Any:
    """The script's data set that an iterator is over."""
    if (made := _made_of_devices.get(iterator)) is not None:
        return made.dataset
    found = _counted.get(iterator)
    return getattr(iterator, "_dataset", None) if found is None else found.dataset


class DatasetHandler(Handler):
    """A data set: made by the set-up code, and never changed but for the generator of its passes' seeds."""

    kind = "tensorflow.Dataset"
    is_dropped_silently = True
    fields: ClassVar = {**plain_fields("passes", "drawn", "start"), "parts": Holds.LIST, "iterators": Holds.LIST}
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        node["parts"] = walk.children(obj._inputs())
        if not is_seeded(obj):
            return
        if obj in passes.in_doubt:
            self._capture_in_doubt(obj, node, walk)
            if (start := places.start_of(obj)) is not None:
                node["start"] = start
        elif obj not in passes.cached:
            node["passes"] = passes.number(obj)

    @staticmethod
    def _capture_in_doubt(dataset: Any, node: Node, walk: Capturing) -> None:
        drawing = [one for one in passes.in_doubt[dataset] if _may_still_draw(one)]
        telling = [one for one in drawing if one in _counted or _tells(one)]
        if telling:
            node["iterators"] = walk.children(telling)
        elif drawing or dataset in passes.cached:
            raise CaptureError("another pass over it may begin at any time, and nothing tells how many have")
        elif not generators.is_known(dataset):
            raise CaptureError(
                "only an iterator over it knows how many passes over its shuffled part have begun, and none is in use"
            )
        else:
            node["drawn"] = places.told(dataset, generators.read(dataset))

    def build(self, node: Node, restore: Restoring) -> Any:
        raise CannotBuild("a data set")

    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        for ref, one in zip(node["parts"], obj._inputs(), strict=True):
            restore.value(ref, one)
        places.know(obj, node.get("start"))
        if "passes" in node:
            passes.begin_missing_of(obj, node["passes"], restore.path_of(node))
        elif "drawn" in node:
            passes.doubt([obj])
            _put_generator(obj, node["drawn"], node, restore)
        for ref in node.get("iterators", ()):
            restore.value(ref)


def _begin_as(dataset: Any, begun: list[int], node: Node, restore: Restoring) -> None:
    """Bring the generators of a data set to where they were before a pass; see `_begun_before`."""
    if not is_late(dataset):
        passes.begin_missing(dataset, begun, restore.path_of(node))
        return
    for one, drawn in zip(seeded_parts_of(dataset, is_cached=False), begun, strict=False):  # none before its first pass
        _put_generator(one, drawn, node, restore)


def _put_generator(dataset: Any, drawn: int, node: Node, restore: Restoring) -> None:
    if not generators.write(dataset, drawn):
        raise RestoreError(f"{restore.path_of(node)}: its generator of seeds cannot be put back. {restore.set_aside()}")


class IteratorHandler(Handler):
    """An iterator over a data set: TensorFlow's own description of its state, else how far Python has taken it."""

    kind = "tensorflow.Iterator"
    fields: ClassVar = {**plain_fields("taken", "begun", "digest", "drawn"), "dataset": Holds.ONE}
    has_attributes = False
    is_last = True  # after its data set, of which it holds the generator of seeds

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        node["dataset"] = walk.child(_dataset_of(obj), ".<data set>")
        if obj in _crowded or (obj in _racing and _others(obj)):
            raise CaptureError(_TWO_PASSES)
        if obj in _counted:
            self._capture_counted(_counted[obj], node)
            return
        try:
            content = _content_of(obj)
        except tf.errors.FailedPreconditionError as error:
            raise CaptureError(f"TensorFlow cannot save its position: {error.message.rpartition(' [Op:')[0]}") from None
        dataset = _dataset_of(obj)
        if not _holds_generators(content, dataset) and is_late(dataset):
            node["drawn"] = self._generators_beside(obj, dataset)
        walk.array(node, np.frombuffer(content, dtype=np.uint8))

    @staticmethod
    def _generators_beside(iterator: Any, dataset: Any) -> list[int]:
        """How far the generators are of an iterator whose state leaves some of them out."""
        parts = seeded_parts_of(dataset, is_cached=False)
        others = [one for one in _holders_of(parts) - {iterator} if _may_still_draw(one)]
        if others and all(map(_tells, others)):
            return []  # theirs tell
        if others or _may_still_draw(iterator) or not all(map(generators.is_known, parts)):
            raise CaptureError(
                "it is exhausted, and its state no longer says how many passes over its shuffled part have begun"
            )
        return [generators.read(one) for one in parts]

    def _capture_counted(self, counted: Counted, node: Node) -> None:
        if counted.begun is None:
            raise CaptureError("nothing says how many passes over its shuffled part had begun before this one")
        node["taken"], node["begun"], node["digest"] = counted.num_taken, counted.begun, counted.digest

    def prepare(self, number: int, node: Node, restore: Restoring) -> None:
        """Elements that have to be asked for are asked for now, so that what that changes is restored after it."""
        if "taken" not in node:
            return
        nodes = restore.tree.nodes
        counted = [(one["begun"], index) for index, one in enumerate(nodes) if one["k"] == self.kind and "taken" in one]
        if number == min(index for _, index in counted):
            for _, index in sorted(counted):  # in the order in which their passes began
                self._prepare(index, nodes[index], restore)

    def _prepare(self, number: int, node: Node, restore: Restoring) -> None:
        live = restore.matched(number)
        if not self.matches(live, node, restore):
            dataset = restore.matched(node["dataset"][1])
            if dataset is None:
                return
            # What a generator has begun on its way is there, but another iterator may have stood in its place in the script.
            begun = (one for one in list(_counted) if _dataset_of(one) is dataset and not restore.is_claimed(one))
            live = next((one for one in begun if self.matches(one, node, restore)), None)
            if live is None:
                _begin_as(dataset, node["begun"], node, restore)
                with places.kept():
                    live = iter(dataset)
            restore.replace_match(number, live)
        why_not = self._advance(live, node)
        if why_not:
            restore.give_up(number, why_not)  # left over from an earlier pass, if nobody asks it for more

    @staticmethod
    def _advance(iterator: Any, node: Node) -> str:
        """Ask it for as many elements. What is wrong with them, if anything is."""
        _crowded.discard(iterator)  # it stands where the checkpoint's did
        counted = _counted[iterator]
        for done in range(counted.num_taken, node["taken"]):
            try:
                next(iterator)
            except StopIteration:
                return f"it ended after {done} elements, and {node['taken']} had been taken from it"
        if counted.digest == node["digest"] or counted.has_ended or not remembers(counted.dataset):
            return ""
        return (
            "asked again for its elements, its data set has given others: what its functions read, a variable or numpy's generator, the "
            "loop had changed"
        )

    def build(self, node: Node, restore: Restoring) -> Any:
        dataset = restore.value(node["dataset"])
        if not isinstance(dataset, Dataset):
            raise CannotBuild("an iterator over a data set")
        with places.kept():
            return iter(dataset)

    def matches(self, live: Any, node: Node, restore: Restoring) -> bool:
        if not isinstance(live, OwnedIterator) or (live in _counted) != ("taken" in node):
            return False
        if "taken" not in node:
            return True
        counted = _counted[live]
        return bool(counted.begun == node["begun"] and counted.num_taken <= node["taken"])

    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        restore.value(node["dataset"], _dataset_of(obj))
        if "taken" in node:
            if why_not := self._advance(obj, node):
                raise RestoreError(f"{restore.path_of(node)}: {why_not}. {restore.set_aside()}")
            return
        _crowded.discard(obj)  # it stands where the checkpoint's did
        content = restore.data(node).tobytes()
        dataset = _dataset_of(obj)
        if "drawn" in node or _holds_generators(content, dataset):
            generators.set_state(obj._iterator_resource, tf.io.parse_tensor(content, tf.variant))
            for one, drawn in zip(seeded_parts_of(dataset, is_cached=False), node.get("drawn", ()), strict=False):
                _put_generator(one, drawn, node, restore)
        else:
            self._end(obj, content, node, restore)

    @staticmethod
    def _end(iterator: Any, content: bytes, node: Node, restore: Restoring) -> None:
        """Set it to a state at its end. TensorFlow begins another pass for that, which draws; the generators are put back."""
        before = generators.state_of(iterator._iterator_resource)
        dataset = _dataset_of(iterator)
        live = tf.io.serialize_tensor(before).numpy()
        if live == content:
            return
        if not _holds_generators(live, dataset):
            raise RestoreError(
                f"{restore.path_of(node)} has come to its end both here and there with other elements left, and its generator of "
                f"seeds cannot be put back. {restore.set_aside()}"
            )
        generators.set_state(iterator._iterator_resource, tf.io.parse_tensor(content, tf.variant))
        put_back = passes.put_back(dataset)
        with places.kept():
            generators.set_state(iter(dataset)._iterator_resource, before)
        put_back()


class IteratorOfDevicesHandler(Handler):
    """An iterator from which the replicas of a distribution strategy have their elements: how many each device has taken."""

    kind = "tensorflow.IteratorOfDevices"
    fields: ClassVar = {**plain_fields("taken", "begun", "digest", "devices"), "dataset": Holds.ONE}
    has_attributes = False
    is_last = True

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        made = _made_of_devices.get(obj)
        if made is None:
            raise CaptureError("it was made inside a graph")
        node["dataset"] = walk.child(made.dataset, ".<data set>")
        if made.begun is None:
            raise CaptureError("nothing says how many passes over its shuffled part had begun before this one")
        counted = [_counted[one] for one in obj._device_iterators]
        node["devices"], node["begun"] = made.arguments, made.begun
        node["taken"], node["digest"] = [one.num_taken for one in counted], [one.digest for one in counted]

    def prepare(self, number: int, node: Node, restore: Restoring) -> None:
        """As for one device."""
        if "taken" not in node:
            return
        live = restore.matched(number)
        if not self.matches(live, node, restore):
            dataset = restore.matched(node["dataset"][1])
            if dataset is None:
                return
            live = self._make(dataset, node, restore)
            restore.replace_match(number, live)
        if why_not := self._advance(live, node):
            restore.give_up(number, why_not)

    def matches(self, live: Any, node: Node, restore: Restoring) -> bool:
        made = _made_of_devices.get(live) if isinstance(live, IteratorOfDevices) else None
        if made is None or made.begun != node["begun"] or made.arguments != node["devices"]:
            return False
        counted = [_counted[one].num_taken for one in live._device_iterators]
        return all(here <= there for here, there in zip(counted, node["taken"], strict=True))

    def build(self, node: Node, restore: Restoring) -> Any:
        dataset = restore.value(node["dataset"])
        if not isinstance(dataset, Dataset):
            raise CannotBuild("an iterator over a data set")
        return self._make(dataset, node, restore)

    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        restore.value(node["dataset"], _dataset_of(obj))
        if why_not := self._advance(obj, node):
            raise RestoreError(f"{restore.path_of(node)}: {why_not}. {restore.set_aside()}")

    @staticmethod
    def _make(dataset: Any, node: Node, restore: Restoring) -> Any:
        _begin_as(dataset, node["begun"], node, restore)
        with places.kept():
            return IteratorOfDevices(dataset, **node["devices"])

    @staticmethod
    def _advance(iterator: Any, node: Node) -> str:
        # In turns: what one device does not take keeps the others from theirs.
        parts = list(zip(iterator._device_iterators, node["taken"], strict=True))
        for done in range(max(node["taken"], default=0)):
            for one, taken in parts:
                if _counted[one].num_taken > done or done >= taken:
                    continue
                try:
                    next(one)
                except StopIteration:
                    return f"it ended after {done} elements, and {taken} had been taken from it"
        if [_counted[one].digest for one, _ in parts] != node["digest"]:
            return "asked again for its elements, its data set has given others"
        return ""


def _content_of(iterator: Any) -> bytes:
    """An iterator's saved state."""
    return bytes(tf.io.serialize_tensor(generators.state_of(iterator._iterator_resource)).numpy())


def _holds_generators(content: bytes, dataset: Any) -> bool:
    """True if a saved state holds all generators of seeds; a part that has come to its end leaves out those of its inputs."""
    parts = parts_of(dataset, is_cached=False) if dataset is not None else ()
    return content.count(generators.NAME) >= sum(map(num_generators, parts))
