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
from detrain.state import patches

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
    """The pointer to a variable's value in the memory of a function's frame; NULL if the variable is not set."""
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
    elif any(step.opname == "DELETE_FAST" and step.argval == name for step in dis.get_instructions(code)):
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
    by_name = {}
    for name in (*frame.f_code.co_cellvars, *frame.f_code.co_freevars):
        # `gc.get_referents` shows nothing of a running frame, so that the cell is read from its memory.
        slot = _slot(frame, name)
        value = ctypes.cast(slot.value, ctypes.py_object).value if slot.value is not None else None
        if type(value) is types.CellType:
            by_name[name] = value
    return by_name


def stack_values(generator: types.GeneratorType[Any, Any, Any]) -> list[Any]:
    """The value stack of a suspended generator: the iterators of the loops that it is in, bottom first.

    The garbage collector's view of a generator lists frame object, function, globals and the like, then variables, then the value
    stack; only iterators and context managers stand on the stack of a generator suspended in a statement.
    """
    return [unwrap.get(type(value), _itself)(value) for value in raw_stack_values(generator)]


def raw_stack_values(generator: types.GeneratorType[Any, Any, Any]) -> list[Any]:
    """As `stack_values`, with the wrappers that instrumented code has put around the iterators."""
    frame = generator.gi_frame
    if frame is None:
        return []
    parts = {
        id(part) for part in (frame, frame.f_code, frame.f_globals, frame.f_builtins, frame.f_locals, frame.f_back)
    }
    in_cells = {*frame.f_code.co_cellvars, *frame.f_code.co_freevars}
    # One variable accounts for one mention: an iterator may be a variable and stand on the stack as well.
    variables = collections.Counter(id(value) for name, value in frame.f_locals.items() if name not in in_cells)
    stack = []
    for value in gc.get_referents(generator):
        if variables[id(value)] > 0:
            variables[id(value)] -= 1
        elif id(value) not in parts and type(value) not in _NOT_ON_STACK:
            stack.append(value)
    return stack


def _itself(value: Any) -> Any:
    return value


#: By the type of a wrapper that instrumented code puts on the stack: gives the iterator of the script that is in it.
unwrap: dict[type, Callable[[Any], Any]] = {}
#: By the same type: `redirect(wrapper, iterator)` lets it take its elements from another iterator; False if the wrapper is not ours.
redirect: dict[type, Callable[[Any, Any], bool]] = {}

_NOT_ON_STACK = (types.FunctionType, types.CodeType, types.CellType, types.FrameType, dict, str)


def place_of(code: types.CodeType) -> list[Any]:
    """File, first line and qualified name of a function; a script's file is named as on the command line, `./train.py`.

    Several lambdas and comprehensions may stand on one line: a digest of their code follows.
    """
    place = [os.path.normpath(code.co_filename), patches.first_line(code), code.co_qualname]
    if code.co_name.startswith("<") and code.co_name != "<module>":
        constants = [constant for constant in code.co_consts if not isinstance(constant, types.CodeType)]
        place.append(xxhash.xxh3_64_hexdigest(code.co_code + repr((constants, code.co_names)).encode()))
    return place


def is_atom(value: Any) -> bool:
    """True for plain values, which have no state of their own."""
    return value is None or isinstance(value, (int, str, bytes, float))
