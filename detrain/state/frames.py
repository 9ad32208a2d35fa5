"""Local variables and value stacks of frames that are running or suspended."""

from __future__ import annotations

import collections
import ctypes
import gc
import os
import sys
import types
from collections.abc import Callable
from typing import Any

import xxhash

#: From 3.13 (PEP 667) `frame.f_locals` of a function writes through; before, a snapshot is copied back by this function.
_WRITES_THROUGH = sys.version_info >= (3, 13)


def read_locals(frame: types.FrameType) -> dict[str, Any]:
    """The variables of a frame that are set, free variables included."""
    return dict(frame.f_locals)


def write_locals(frame: types.FrameType, values: dict[str, Any]) -> None:
    """Set variables of a frame that is running or suspended; variables not named stay as they are."""
    namespace = frame.f_locals
    for name, value in values.items():
        namespace[name] = value
    if not _WRITES_THROUGH and namespace is not frame.f_globals:
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))


def is_module_level(frame: types.FrameType) -> bool:
    """True if the frame's variables are its module's globals."""
    return frame.f_code.co_name == "<module>" and frame.f_locals is frame.f_globals


def cells(frame: types.FrameType) -> dict[str, types.CellType]:
    """The cells of a running function by variable name, in which its closures share variables."""
    code = frame.f_code
    found = [value for value in gc.get_referents(frame) if type(value) is types.CellType]
    names = [name for name in code.co_varnames if name in code.co_cellvars]
    names += [name for name in code.co_cellvars if name not in code.co_varnames] + list(code.co_freevars)
    # Cells lie in the order of the variables; a cell pushed as a value (a closure under construction) comes after them.
    return dict(zip(names, found, strict=False)) if len(found) >= len(names) else {}


def stack_values(generator: types.GeneratorType[Any, Any, Any]) -> list[Any]:
    """What a suspended generator holds beside its variables: the iterators of the loops it is in, bottom first.

    The garbage collector's view of a generator lists frame object, function, globals and the like, then variables, then the value
    stack; only iterators and context managers stand on the stack of a generator suspended in a statement.
    """
    return [unwrap.get(type(value), _itself)(value) for value in raw_stack_values(generator)]


def raw_stack_values(generator: types.GeneratorType[Any, Any, Any]) -> list[Any]:
    """The same, with what instrumented code has put around them."""
    frame = generator.gi_frame
    if frame is None:
        return []
    parts = {id(one) for one in (frame, frame.f_code, frame.f_globals, frame.f_builtins, frame.f_locals, frame.f_back)}
    in_cells = {*frame.f_code.co_cellvars, *frame.f_code.co_freevars}
    # One variable accounts for one mention: an iterator may be a variable and stand on the stack as well.
    variables = collections.Counter(id(value) for name, value in frame.f_locals.items() if name not in in_cells)
    found = []
    for value in gc.get_referents(generator):
        if variables[id(value)] > 0:
            variables[id(value)] -= 1
        elif id(value) not in parts and type(value) not in _NOT_ON_STACK:
            found.append(value)
    return found


def _itself(value: Any) -> Any:
    return value


#: By type: how to get from what instrumented code put on the stack to what the script put there.
unwrap: dict[type, Callable[[Any], Any]] = {}
#: Likewise: how to let it take its elements from another iterator; gives False if it is none of instrumented code's.
redirect: dict[type, Callable[[Any, Any], bool]] = {}

_NOT_ON_STACK = (types.FunctionType, types.CodeType, types.CellType, types.FrameType, dict, str)


def place_of(code: types.CodeType) -> list[Any]:
    """File, first line and name of a function; of a script the file's name is as the command line had it, `./train.py`.

    Of what has no name, several stand on one line: those are told apart by what they do.
    """
    place = [os.path.normpath(code.co_filename), code.co_firstlineno, code.co_qualname]
    if code.co_name.startswith("<") and code.co_name != "<module>":
        constants = [one for one in code.co_consts if not isinstance(one, types.CodeType)]
        place.append(xxhash.xxh3_64_hexdigest(code.co_code + repr((constants, code.co_names)).encode()))
    return place


def is_atom(value: Any) -> bool:
    """True for what has no state of its own."""
    return value is None or isinstance(value, (int, str, bytes, float))
