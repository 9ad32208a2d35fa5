"""Local variables and value stacks of frames that are running or suspended."""

from __future__ import annotations

import collections
import ctypes
import dis
import gc
import inspect
import os
import sys
import types
from collections.abc import Callable, Collection
from typing import Any

import xxhash

from detrain.errors import RestoreError

#: From 3.13 (PEP 667) `frame.f_locals` of a function writes through; before, a snapshot is copied back by this function.
_WRITES_THROUGH = sys.version_info >= (3, 13)
#: In 3.11 to 3.13: where a frame object points to its frame, and where in that the variables begin.
_INNER_FRAME, _VARIABLES = 24, 72


def read_locals(frame: types.FrameType) -> dict[str, Any]:
    """The variables of a frame that are set, free variables included."""
    return dict(frame.f_locals)


def write_locals(frame: types.FrameType, values: dict[str, Any], gone: Collection[str] = ()) -> None:
    """Set variables of a frame that is running or suspended, delete those in `gone`; variables not named stay as they are."""
    is_function = bool(frame.f_code.co_flags & inspect.CO_OPTIMIZED)
    for name in gone:
        if is_function:
            _unset(frame, name)
        else:
            frame.f_locals.pop(name, None)
    namespace = frame.f_locals
    for name, value in values.items():
        namespace[name] = value
    if not _WRITES_THROUGH and namespace is not frame.f_globals:
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))


def _slot(frame: types.FrameType, name: str) -> ctypes.c_void_p:
    """Where the memory of a function's frame has one of its variables; empty if that is not set."""
    code = frame.f_code
    names = [*code.co_varnames, *(name for name in code.co_cellvars if name not in code.co_varnames), *code.co_freevars]
    inner = ctypes.c_void_p.from_address(id(frame) + _INNER_FRAME).value or 0
    return ctypes.c_void_p.from_address(inner + _VARIABLES + names.index(name) * ctypes.sizeof(ctypes.c_void_p))


def _unset(frame: types.FrameType, name: str) -> None:
    """Delete a variable of a function in the frame's memory: `f_locals` sets None from 3.12 on, and refuses from 3.13 on."""
    code = frame.f_code
    if name not in frame.f_locals:
        return
    if name in code.co_cellvars or name in code.co_freevars:
        del cells(frame)[name].cell_contents
    elif any(one.opname == "DELETE_FAST" and one.argval == name for one in dis.get_instructions(code)):
        value, slot = frame.f_locals[name], _slot(frame, name)
        if slot.value != id(value):
            raise RestoreError(f"{code.co_qualname}: its variable {name} cannot be deleted in this version of Python")
        slot.value = None
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(value))
    # Otherwise its code deletes it nowhere, and reads it without looking whether it is there.


def is_module_level(frame: types.FrameType) -> bool:
    """True if the frame's variables are its module's globals."""
    return frame.f_code.co_name == "<module>" and frame.f_locals is frame.f_globals


def cells(frame: types.FrameType) -> dict[str, types.CellType]:
    """The cells of a running function by variable name, in which its closures share variables."""
    found = {}
    for name in (*frame.f_code.co_cellvars, *frame.f_code.co_freevars):
        # The garbage collector tells nothing of a frame that runs.
        slot = _slot(frame, name)
        value = ctypes.cast(slot.value, ctypes.py_object).value if slot.value is not None else None
        if type(value) is types.CellType:
            found[name] = value
    return found


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
