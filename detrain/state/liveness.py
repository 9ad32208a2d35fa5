"""Which variables are dead where a frame stands: whatever the program does next, they are written before they are read again.

What a dead variable holds cannot change what the program computes, so that no resume needs it. Told from the bytecode that runs: a
variable is dead if on every way from the frame's present instruction, those over exception handlers included, it is written first, or
the code ends. A global is dead only if beside the running code of its module nothing reads it. Where code can read variables by names
that stand in strings (`eval`, `locals()`), none is dead.
"""

from __future__ import annotations

import bisect
import dis
import inspect
import types
from collections.abc import Iterable, Iterator

#: Names by which code reaches variables that it does not name: of its own frame, of whoever has called it, or of a module.
_BY_STRING = frozenset({
    "locals", "vars", "eval", "exec", "dir", "_getframe", "currentframe", "stack", "f_locals", "query", "evaluate", "dump_session",
})  # fmt: skip
_GLOBALS_BY_STRING = _BY_STRING | {"globals", "__dict__", "__globals__", "modules", "run_path", "run_module"}
_ENDS = frozenset({"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE", "JUMP_FORWARD"})
_HAS_JUMP = frozenset(dis.hasjrel) | frozenset(dis.hasjabs)
_HAS_NAME = frozenset(dis.hasname)
_HAS_LOCAL = frozenset(dis.haslocal)
_READS_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS", "LOAD_CLASSDEREF", "DELETE_GLOBAL")


def dead_variables(frame: types.FrameType) -> frozenset[str]:
    """Names of the local variables that are dead where a running or suspended frame stands; of a module's frame, of its globals.

    A global may still be read by functions: `read_elsewhere` has the names of those that are.
    """
    code = frame.f_code
    if not (code.co_flags & inspect.CO_OPTIMIZED or code.co_name == "<module>"):
        return frozenset()  # a class body
    return _dead_at(code, frame.f_lasti)


#: What has been found, by the `id` of the code (which it keeps alive): to hash code is to hash all of it, and all that is in it.
_dead: dict[tuple[int, int], tuple[frozenset[str], types.CodeType]] = {}
_read: dict[tuple[int, ...], tuple[frozenset[str] | None, tuple[types.CodeType, ...]]] = {}


def _dead_at(code: types.CodeType, place: int) -> frozenset[str]:
    key = (id(code), place)
    if key not in _dead:
        _dead[key] = (_find_dead(code, place), code)
    return _dead[key][0]


def _find_dead(code: types.CodeType, place: int) -> frozenset[str]:
    is_module = code.co_name == "<module>"
    if not (_GLOBALS_BY_STRING if is_module else _BY_STRING).isdisjoint(code.co_names):
        return frozenset()
    live = _live_after(code, place, is_module=is_module)
    # A variable that closures share is a cell, and they may read it.
    names = set(code.co_names) if is_module else {*code.co_varnames} - {*code.co_cellvars, *code.co_freevars}
    return frozenset(names - live)


def read_elsewhere(module: types.CodeType, modules: Iterable[types.CodeType]) -> frozenset[str] | None:
    """Names of a module's globals that its functions and classes read, or others of the script's `modules` might.

    None if they may read any.
    """
    codes = (module, *modules)
    key = tuple(map(id, codes))
    if key not in _read:
        _read[key] = (_find_read(module, codes), codes)
    return _read[key][0]


def _find_read(module: types.CodeType, modules: Iterable[types.CodeType]) -> frozenset[str] | None:
    found: set[str] = set()
    for code in _nested(module):
        if not _GLOBALS_BY_STRING.isdisjoint(code.co_names):
            return None
        found.update(step.argval for step in dis.get_instructions(code) if step.opname in _READS_GLOBAL)
    for other in modules:
        if other is not module:
            for code in (other, *_nested(other)):
                if "__main__" in code.co_consts and not {"modules", "import_module"}.isdisjoint(code.co_names):
                    return None
                found.update(code.co_names)
    return frozenset(found)


def _nested(code: types.CodeType) -> Iterator[types.CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from _nested(constant)


def _live_after(code: types.CodeType, place: int, *, is_module: bool) -> frozenset[str]:
    """Names that may be read before they are written, once the instruction at `place` is done or has failed."""
    steps = [step for step in dis.get_instructions(code) if step.opname != "CACHE"]
    offsets = [step.offset for step in steps]
    index = {offset: number for number, offset in enumerate(offsets)}
    follow = [_next(steps, number, index) for number in range(len(steps))]
    # A set of names is an integer with a bit for each: there may be thousands of instructions, and each is looked at several times.
    effects = [_effect(step, is_module=is_module) for step in steps]
    bits = {
        name: 1 << bit
        for bit, name in enumerate(dict.fromkeys(name for both in effects for one in both for name in one))
    }
    reads = [sum(bits[name] for name in one) for one, _ in effects]
    keeps = [~sum(bits[name] for name in one) for _, one in effects]
    failing = _failing(steps, code, offsets, index)
    live = [0] * len(steps)
    is_changed = True
    while is_changed:
        is_changed = False
        for number in range(len(steps) - 1, -1, -1):
            after = 0
            for one in follow[number]:
                after |= live[one]
            # What an instruction writes is not written if it fails.
            now = (after & keeps[number]) | reads[number]
            for one in failing[number]:
                now |= live[one]
            if now != live[number]:
                live[number], is_changed = now, True
    # Of an instruction with inline caches, `f_lasti` may lie behind its first unit.
    here = bisect.bisect_right(offsets, max(place, 0)) - 1
    found = 0
    for one in (*follow[here], *failing[here]):
        found |= live[one]
    return frozenset(name for name, bit in bits.items() if found & bit)


def _failing(
    steps: list[dis.Instruction], code: types.CodeType, offsets: list[int], index: dict[int, int]
) -> list[list[int]]:
    """By instruction, where it goes on if it fails."""
    found: list[list[int]] = [[] for _ in steps]
    for start, end, target in _exception_table(code):
        for number in range(bisect.bisect_left(offsets, start), bisect.bisect_left(offsets, end)):
            found[number].append(index[target])
    return found


def _next(steps: list[dis.Instruction], number: int, index: dict[int, int]) -> list[int]:
    step = steps[number]
    found = []
    if step.opcode in _HAS_JUMP:
        found.append(index[step.argval])
    if step.opname not in _ENDS and not step.opname.startswith("JUMP_BACKWARD") and number + 1 < len(steps):
        found.append(number + 1)
    return found


def _effect(step: dis.Instruction, *, is_module: bool) -> tuple[frozenset[str], frozenset[str]]:
    """Names that an instruction reads, and those that it writes."""
    name = step.opname
    if is_module:
        if step.opcode not in _HAS_NAME or not name.endswith(("_NAME", "_GLOBAL")):
            return frozenset(), frozenset()
        one = frozenset({step.argval})
        return (frozenset(), one) if name.startswith("STORE_") else (one, frozenset())
    if step.opcode not in _HAS_LOCAL:
        return frozenset(), frozenset()
    names = tuple(step.argval) if isinstance(step.argval, tuple) else (step.argval,)
    if name.startswith("STORE_FAST_LOAD_FAST"):
        return frozenset(names[1:]) - frozenset(names[:1]), frozenset(names[:1])
    if name.startswith("STORE_FAST"):
        return frozenset(), frozenset(names)
    return frozenset(names), frozenset()


def _exception_table(code: types.CodeType) -> Iterable[tuple[int, int, int]]:
    """(start, end, handler), in bytes: Objects/exception_handling_notes.txt of CPython, 3.11 on."""
    units = iter(code.co_exceptiontable)

    def number() -> int:
        unit = next(units)
        value = unit & 63
        while unit & 64:
            unit = next(units)
            value = (value << 6) | (unit & 63)
        return value * 2

    while True:
        try:
            start = number()
        except StopIteration:
            return
        length, target = number(), number()
        number()  # depth of the stack, and whether the place is pushed
        yield start, start + length, target
