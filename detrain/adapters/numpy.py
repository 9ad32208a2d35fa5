"""numpy: arrays with their views, scalars, dtypes and generators of random numbers."""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import struct
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import xxhash

from detrain.adapters.protocol import Adapter, OperatorCall, Settings
from detrain.errors import CaptureError
from detrain.state import blank
from detrain.state.classes import derived_from
from detrain.state.dtypes import dtype_text, text_dtype
from detrain.state.fields import Holds, plain_fields
from detrain.state.handler import Capturing, Handler, MemoryRange, Restoring, mark_not_saved
from detrain.state.handlers.objects import register_value
from detrain.state.registry import register
from detrain.state.sharing import array_within, memory_within
from detrain.state.tree import Node

#: Words of a Mersenne Twister, and which comes next.
_WORDS = struct.Struct("=624Ii")
_HOLDS_OBJECTS = "a structured array that holds Python objects"


class ArrayHandler(Handler):
    """An array: dtype, shape, strides and bytes. A view names the array that it looks into, so that both keep sharing memory."""

    kind = "numpy.ndarray"
    is_dropped_silently = True
    fields: ClassVar = {
        **plain_fields("shape", "strides", "dtype", "writeable", "file", "offset", "order"),
        "base": Holds.ONE,
        "seq": Holds.LIST,
    }

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        node["shape"], node["strides"], node["dtype"] = list(obj.shape), list(obj.strides), dtype_text(obj.dtype)
        node["writeable"] = bool(obj.flags.writeable)
        if isinstance(obj, np.memmap) and not obj.flags.writeable:
            if (place := _place_of_map(obj)) is None:
                mark_not_saved(node, f"a read-only map of {obj.filename}", warns=False)
            else:
                node["file"] = place
            return
        if obj.dtype.hasobject and obj.dtype != object:
            raise CaptureError(_HOLDS_OBJECTS)
        base = owner_of(obj)
        if base is not obj:
            node["base"] = walk.child(base, ".<base>")
            node["offset"] = _offset(obj, base)
            return
        if obj.dtype.hasobject:
            node["seq"] = walk.children(obj.ravel(order="K").tolist() if obj.size else [])
            node["order"] = "F" if obj.flags.f_contiguous and not obj.flags.c_contiguous else "C"
            return
        plain = np.asarray(obj)
        is_fortran = plain.flags.f_contiguous and not plain.flags.c_contiguous
        content = plain.T if is_fortran else plain
        walk.array(node, storable(np.ascontiguousarray(content)), node["dtype"])

    def memory(self, obj: Any) -> tuple[int, int] | None:
        if obj.dtype.hasobject or not obj.flags.c_contiguous:
            return None
        return obj.__array_interface__["data"][0], obj.nbytes

    def memory_range(self, obj: Any) -> MemoryRange | None:
        if obj.dtype.hasobject or owner_of(obj) is not obj:
            return None
        begin = end = obj.__array_interface__["data"][0]
        for count, stride in zip(obj.shape, obj.strides, strict=True):
            begin, end = begin + min(0, (count - 1) * stride), end + max(0, (count - 1) * stride)
        return MemoryRange(begin, end - begin + obj.itemsize if obj.size else 0, 0 if obj.flags.owndata else 2)

    def matches(self, live: Any, node: Node, restore: Restoring) -> bool:
        if not super().matches(live, node, restore):
            return False
        if "kept" in node:
            return True
        same = list(live.shape) == node["shape"] and dtype_text(live.dtype) == node["dtype"]
        if not same or (live.size > 1 and list(live.strides) != node["strides"]):
            return False
        base = owner_of(live)
        if "file" in node:
            return bool(_place_of_map(live) == node["file"])
        if "base" not in node:
            return base is live
        return base is not live and _offset(live, base) == node["offset"] and restore.value(node["base"], base) is base

    def build(self, node: Node, restore: Restoring) -> Any:
        cls = restore.find_type(node)
        dtype = text_dtype(node["dtype"])
        if "file" in node:
            name, begin = node["file"]
            return np.memmap(name, dtype, "r", begin, tuple(node["shape"]))
        if "base" in node:
            base = restore.value(node["base"])
            return np.ndarray.__new__(cls, node["shape"], dtype, base, node["offset"], node["strides"])
        if "seq" in node:
            return np.ndarray.__new__(cls, node["shape"], dtype, order=node["order"])
        strides = node["strides"]
        if "within" in node:
            num_bytes = (
                sum((count - 1) * stride for count, stride in zip(node["shape"], strides, strict=True)) + dtype.itemsize
            )
            if cls is np.ndarray and dtype.kind != "V" and num_bytes > 0:
                return array_within(node, num_bytes, dtype, restore)
            return np.ndarray.__new__(cls, node["shape"], dtype, memory_within(node, num_bytes, restore), 0, strides)
        is_fortran = len(strides) > 1 and strides == sorted(strides) and strides != sorted(strides, reverse=True)
        return np.ndarray.__new__(cls, node["shape"], dtype, order="F" if is_fortran else "C")

    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        if "file" in node:
            return
        plain = np.asarray(obj)
        if "seq" in node:
            elements = restore.values(node["seq"], obj.ravel(order="K").tolist())
            flat = plain.ravel(order="K")
            for position, element in enumerate(elements):
                flat[position] = element
            if not np.shares_memory(flat, plain):
                plain[...] = flat.reshape(plain.shape, order=node["order"])
        elif "base" not in node:
            data = restore.data(node)
            is_fortran = plain.flags.f_contiguous and not plain.flags.c_contiguous
            content = data.view(plain.dtype).reshape(plain.T.shape if is_fortran else plain.shape)
            content = content.T if is_fortran else content
            self._write(plain, content, node, restore)
        if obj.flags.writeable != node["writeable"]:
            obj.flags.writeable = node["writeable"]

    def _write(self, live: Any, content: Any, node: Node, restore: Restoring) -> None:
        if live.flags.writeable:
            _copy(live, content)
        elif live.tobytes() != content.tobytes():
            live.flags.writeable = True
            live[...] = content
            live.flags.writeable = False


def _copy(live: Any, content: Any) -> None:
    """Elements of the same dtype and shape."""
    if live.nbytes >= blank.LEAST_BYTES and live.flags.f_contiguous and content.flags.f_contiguous:
        live, content = live.T, content.T
    if live.nbytes >= blank.LEAST_BYTES and live.flags.c_contiguous and content.flags.c_contiguous:
        blank.copy(live.reshape(-1).view(np.uint8), content.reshape(-1).view(np.uint8))
    else:
        live[...] = content


def _place_of_map(array: Any) -> list[Any] | None:
    """File and offset of a map of a file; None for a view of one, which tells the offset of what it is a view of."""
    map_: Any = array.base
    if not isinstance(array, np.memmap) or type(map_) is not mmap.mmap or not array.flags.c_contiguous:
        return None
    name: Any = array.filename
    return None if name is None else [os.path.abspath(name), int(array.offset)]


def owner_of(array: Any) -> Any:
    """The ndarray whose memory this one looks into; the array itself if it owns its memory or another kind of object does."""
    base: Any = array.base
    while type(base) is _WINDOW:
        base = owner_of(base.base) if isinstance(base.base, np.ndarray) else base.base
    return base if isinstance(base, np.ndarray) and type(base) is not np.memmap else array


#: What stands between an array and one that `as_strided` has made of it.
_WINDOW: Any = type(np.lib.stride_tricks.as_strided(np.zeros(1)).base)


def _offset(view: Any, base: Any) -> int:
    """Bytes from the beginning of an array to where something in it begins."""
    begins: int = np.asarray(view).__array_interface__["data"][0]
    return begins - int(base.__array_interface__["data"][0])


def storable(data: Any) -> Any:
    """The same bytes under a dtype that HDF5 has."""
    return data.view(np.uint8) if data.dtype.kind in "VMmSU" else data


class GeneratorHandler(Handler):
    """`numpy.random.Generator` and `RandomState`: the state of their bit generator."""

    kind = "numpy.random"
    is_dropped_silently = True
    fields: ClassVar = {**plain_fields("state"), "bits": Holds.ONE}
    is_last = True

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        node["bits"] = walk.child(_bits_of(obj), ".bit_generator")
        if isinstance(obj, np.random.RandomState):
            # The bit generator's, and half a pair of normal numbers.
            node["state"] = encode_state(obj.get_state(legacy=False))

    def fingerprint(self, obj: Any) -> bytes:
        _, words, position, has_gauss, gauss = obj.get_state()
        return bytes(words.data) + f"{position} {has_gauss} {gauss}".encode()

    def watch(self, obj: Any) -> Callable[[], object] | None:
        bits = _bits_of(obj)
        if type(obj) is not np.random.RandomState or type(bits) is not np.random.MT19937 or not _lies_in_memory():
            return None
        own, words = _content(obj)
        # What is asked for last keeps the words' memory alive, also where the generator gets other bits.
        return lambda: (xxhash.xxh3_64_intdigest(own), xxhash.xxh3_64_intdigest(words), bits)

    def build(self, node: Node, restore: Restoring) -> Any:
        made = np.random.RandomState if "state" in node else np.random.Generator
        return made(restore.value(node["bits"]))

    def matches(self, live: Any, node: Node, restore: Restoring) -> bool:
        return super().matches(live, node, restore) and restore.value(node["bits"], _bits_of(live)) is _bits_of(live)

    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        if "state" in node:
            obj.set_state(decode_state(node["state"]))


def _content(generator: np.random.RandomState) -> tuple[Any, Any]:
    """The generator's own memory, with the normal number that it holds back, and that of its words and their position."""
    begin = object.__basicsize__
    own = (ctypes.c_ubyte * (np.random.RandomState.__basicsize__ - begin)).from_address(id(generator) + begin)
    return own, (ctypes.c_ubyte * _WORDS.size).from_address(_bits_of(generator).ctypes.state_address)


@functools.cache
def _lies_in_memory() -> bool:
    """Whether they lie there, as they do in numpy 1.17 and later: seen in a generator of our own, whose state is set."""
    own = np.random.RandomState(np.random.MT19937(1))
    words = own.get_state(legacy=False)["state"]["key"]
    seen = []
    for position, has_gauss, gauss in ((3, 1, 0.123456789), (3, 0, 0.123456789), (3, 1, 0.5), (4, 1, 0.5)):
        own.set_state(("MT19937", words, position, has_gauss, gauss))
        seen.append(tuple(map(bytes, _content(own))))
        if seen[-1][1] != _WORDS.pack(*words.tolist(), position) or struct.pack("=d", gauss) not in seen[-1][0]:
            return False
    return len(set(seen)) == len(seen)


def _bits_of(generator: Any) -> Any:
    return generator._bit_generator if isinstance(generator, np.random.RandomState) else generator.bit_generator


class BitGeneratorHandler(Handler):
    """PCG64, MT19937, Philox, SFC64: their `state` dict, and the sequence of seeds that `spawn` goes on in."""

    kind = "numpy.random.BitGenerator"
    is_dropped_silently = True
    fields: ClassVar = {**plain_fields("state"), "seeds": Holds.ONE}
    is_last = True

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        node["state"] = encode_state(obj.state)
        node["seeds"] = walk.child(obj.seed_seq, ".seed_seq")

    def build(self, node: Node, restore: Restoring) -> Any:
        return restore.find_type(node)(0)

    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        seeds = restore.value(node["seeds"], obj.seed_seq)
        if seeds is not obj.seed_seq:
            obj.__setstate__((obj.state, seeds))
        obj.state = decode_state(node["state"])


def encode_state(state: Any) -> Any:
    """A bit generator's state dict with its arrays as lists."""
    if isinstance(state, dict):
        return {key: encode_state(value) for key, value in state.items()}
    if isinstance(state, np.ndarray):
        return {"array": state.tolist(), "dtype": state.dtype.str}
    if isinstance(state, float):
        return {"float": state.hex()}
    return state.item() if isinstance(state, np.generic) else state


def decode_state(state: Any) -> Any:
    """The inverse of `encode_state`."""
    if not isinstance(state, dict):
        return state
    if state.keys() == {"array", "dtype"}:
        return np.array(state["array"], dtype=state["dtype"])
    if state.keys() == {"float"}:
        return float.fromhex(state["float"])
    return {key: decode_state(value) for key, value in state.items()}


#: numpy's own classes of scalars but rows, which have a handler of their own, and objects, which are no scalars.
_SCALARS: frozenset[type[Any]] = frozenset(np.dtype(code).type for code in np.typecodes["All"]) - {np.void, np.object_}


class ScalarHandler(Handler):
    """A numpy scalar: dtype and bytes; attributes too, if its class is derived from numpy's."""

    kind = "numpy.generic"
    is_dropped_silently = True
    fields: ClassVar = plain_fields("dtype", "bytes")

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        node["dtype"] = dtype_text(obj.dtype)
        node["bytes"] = obj.tobytes().hex()

    def matches(self, live: Any, node: Node, restore: Restoring) -> bool:
        return (
            super().matches(live, node, restore)
            and dtype_text(live.dtype) == node["dtype"]  # a unit of time is no type
            and live.tobytes().hex() == node["bytes"]
        )

    def build(self, node: Node, restore: Restoring) -> Any:
        array: np.ndarray[Any, Any] = np.zeros(1, dtype=text_dtype(node["dtype"]))
        if array.nbytes:  # an empty text has none
            array = np.frombuffer(bytes.fromhex(node["bytes"]), dtype=array.dtype)
        cls = restore.find_type(node)
        own = next(base for base in cls.__mro__ if base in _SCALARS)
        # Where two types of C's have one size, both have the dtype of one of them.
        value = array[0] if type(array[0]) is own else array.view(np.dtype(own))[0]
        return value if cls is own else own.__new__(cls, value)


class RowHandler(Handler):
    """A row of a structured array: it writes into the array that it was taken from, or into bytes of its own."""

    kind = "numpy.void"
    is_dropped_silently = True
    fields: ClassVar = {**plain_fields("dtype", "bytes", "offset"), "base": Holds.ONE}
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        if obj.dtype.hasobject:
            raise CaptureError(_HOLDS_OBJECTS)
        node["dtype"] = dtype_text(obj.dtype)
        if isinstance(obj.base, np.ndarray):
            node["base"] = walk.child(obj.base, ".<base>")
            node["offset"] = _offset(obj, obj.base)
        else:
            node["bytes"] = obj.tobytes().hex()

    def matches(self, live: Any, node: Node, restore: Restoring) -> bool:
        if not super().matches(live, node, restore) or dtype_text(live.dtype) != node["dtype"]:
            return False
        base = live.base
        if "base" not in node:
            return not isinstance(base, np.ndarray) and (_is_row(live) or live.tobytes().hex() == node["bytes"])
        if not isinstance(base, np.ndarray) or _offset(live, base) != node["offset"]:
            return False
        return restore.value(node["base"], base) is base

    def build(self, node: Node, restore: Restoring) -> Any:
        cls = restore.find_type(node)
        dtype = text_dtype(node["dtype"])
        dtype = dtype if cls is np.void else np.dtype((cls, dtype))
        if "base" not in node:
            made = np.frombuffer(bytes.fromhex(node["bytes"]), dtype=dtype)[0]
            return made.copy() if dtype.names else made
        base = restore.value(node["base"])
        return np.ndarray((), base.dtype if dtype_text(base.dtype) == node["dtype"] else dtype, base, node["offset"])[
            ()
        ]

    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        if "bytes" in node and obj.tobytes().hex() != node["bytes"]:
            np.asarray(obj)[...] = np.frombuffer(bytes.fromhex(node["bytes"]), dtype=obj.dtype)[0]


def _is_row(live: Any) -> bool:
    """True for one with fields: they can be written. Bytes without fields cannot."""
    return live.dtype.names is not None


register(ArrayHandler(), np.ndarray)
register(RowHandler(), np.void)
register(GeneratorHandler(), np.random.Generator, np.random.RandomState)
# Of these, each kind is a class of its own, written in C; the registry asks for such by themselves.
register(ScalarHandler(), *_SCALARS)
register(BitGeneratorHandler(), *derived_from(np.random.BitGenerator))
for _cls in derived_from(np.dtype):
    register_value(_cls, lambda v: (dtype_text(v),), text_dtype)


_PLAIN_FLAGS = (int, float, str, bool, type(None))


class NumpyAdapter(Adapter):
    """numpy."""

    name = "numpy"
    can_train = False
    generator_types = (np.random.Generator, np.random.RandomState)

    def prepare(self, settings: Settings) -> None:
        """Seed the global generator."""
        np.random.seed(settings.seed % 2**32)

    def generators(self) -> dict[str, Any]:
        """The global generator."""
        return {"numpy": np.random.mtrand._rand}

    def flags(self) -> dict[str, Any]:
        """How numpy treats floating-point errors, and how it prints."""
        printing = {name: value for name, value in np.get_printoptions().items() if isinstance(value, _PLAIN_FLAGS)}
        return {"errors": dict(np.geterr()), "print": printing}

    def set_flags(self, flags: dict[str, Any]) -> None:
        np.seterr(**flags["errors"])
        # What is no plain value, a formatter, is the set-up code's.
        np.set_printoptions(**{**np.get_printoptions(), **flags["print"]})

    def facts(self) -> dict[str, Any]:
        """The installed version."""
        return {"numpy": np.__version__}

    def log_operators(
        self, is_user_file: Callable[[str], bool], on_call: Callable[[OperatorCall], None]
    ) -> Callable[[], None]:
        """Logs nothing: what numpy changes shows in the inputs of the operators of a framework that trains."""
        return lambda: None


ADAPTER = NumpyAdapter()
