"""The seam of the rewriter: source in, instrumented source out. Pure.

A `for` loop's iterable and a `while` loop's condition go through a hook, in place::

    for epoch in range(epochs):            for epoch in record_epoch(3, (range(epochs))):
        for x, y in loader:                    for x, y in record_batch(4, (loader)):
            if loss < 1: break                         if loss < 1: record_batch(4, left=True); break

    while step < limit:                    enter_loop(3)
                                           while record_batch(3) and (step < limit):
                                               ...
                                           else:
                                               record_batch(3, ended=True)

A batch loop that loads its own data has `record_loop` in its header, and `record_batch(4, loaded=True)` behind what loads.

The hook stands in the header and not in the body, because only there can an iteration be skipped without making its element,
whatever the loop's targets look like; `else`, `break` and `continue` keep their meaning, and no line moves but by those around a
`while`. A `break` is told where it leads straight behind its loop: not out of a `with` or a `try`, which do something before, nor past
an `else`. The number is the header's line in the original source. `record_loop` marks a loop whose part in the training is not known
yet.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider

from detrain.loops.sites import find_loops
from detrain.rewrite.loads import Load, Place, place_of
from detrain.rewrite.tree import ENTER, HOOKS, builtin_name

HOOK_NAMES = frozenset({*HOOKS.values(), ENTER})


def instrument(source: str, parts: Mapping[int, str], load: Load | None = None) -> str:
    """The source with hooks at the loops whose header lines are the keys of `parts`; the values are their parts (see `HOOKS`).

    `load` tells of a batch loop that loads its own data.
    """
    tree = ast.parse(source)
    lines = [site.line for site in find_loops(tree)]
    place = place_of(tree, load) if load is not None else None
    if load is None or place is None:
        return cst.parse_module(source).visit(_AddHooks(lines, parts)).code
    inner = {**parts, load.loop_line: "outer"}
    # Copies share no node: only so can a node's line be looked up.
    wrapper = MetadataWrapper(cst.parse_module(source))
    marked = wrapper.module.visit(_AddLoaded(wrapper.resolve(PositionProvider), place, load.loop_line))
    return marked.visit(_AddHooks(lines, inner)).code


class _AddLoaded(cst.CSTTransformer):
    """Puts `record_batch(line, loaded=True)` at a place."""

    def __init__(self, positions: Mapping[cst.CSTNode, Any], place: Place, loop_line: int) -> None:
        super().__init__()
        self._positions, self._place = positions, place
        self._hook = _statement(HOOKS["batch"], loop_line, "loaded")

    def _is_here(self, node: cst.CSTNode) -> bool:
        return bool(self._positions[node].start.line == self._place.line)

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.BaseStatement | cst.FlattenSentinel[cst.BaseStatement]:
        if self._place.is_body or not self._is_here(original_node):
            return updated_node
        return cst.FlattenSentinel([updated_node, self._hook])

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        updated: Any = super().on_leave(original_node, updated_node)
        is_compound = isinstance(original_node, cst.BaseCompoundStatement)
        if not (is_compound and self._place.is_body and self._is_here(original_node)):
            return updated
        return updated.with_changes(body=_begin_with(updated.body, self._hook))


def _begin_with(body: cst.BaseSuite, statement: cst.SimpleStatementLine) -> cst.BaseSuite:
    if isinstance(body, cst.IndentedBlock):
        return body.with_changes(body=[statement, *body.body])
    assert isinstance(body, cst.SimpleStatementSuite)
    return body.with_changes(body=[statement.body[0], *body.body])


class _AddHooks(cst.CSTTransformer):
    """Loops are met in the order of the source, so that the n-th one begins on the n-th line of the list."""

    def __init__(self, lines: list[int], parts: Mapping[int, str]) -> None:
        super().__init__()
        self._lines = iter(lines)
        self._parts = parts
        self._line_of: dict[cst.CSTNode, int] = {}
        #: What is around the present node: loops, whose line is there if a `break` in them is told, and what keeps a `break` from that.
        self._around: list[tuple[cst.CSTNode, int | None]] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, (cst.With, cst.Try, cst.TryStar)):
            self._around.append((node, None))
        is_visited = super().on_visit(node)
        if isinstance(node, (cst.For, cst.While)):
            line = self._line_of.get(node)
            self._around.append((node, line if node.orelse is None and line in self._parts else None))
        return is_visited

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        if self._around and self._around[-1][0] is original_node:
            self._around.pop()
        return super().on_leave(original_node, updated_node)

    def visit_For(self, node: cst.For) -> None:
        if node.asynchronous is None:
            self._line_of[node] = next(self._lines)

    def visit_While(self, node: cst.While) -> None:
        self._line_of[node] = next(self._lines)

    def leave_Break(
        self,
        original_node: cst.Break,  # noqa: ARG002 - libcst gives both
        updated_node: cst.Break,
    ) -> cst.BaseSmallStatement | cst.FlattenSentinel[cst.BaseSmallStatement]:
        line = self._around[-1][1] if self._around else None
        if line is None:
            return updated_node
        told = _statement(HOOKS[self._parts[line]], line, "left").body[0]
        return cst.FlattenSentinel([told, updated_node])

    def leave_For(self, original_node: cst.For, updated_node: cst.For) -> cst.BaseStatement:
        line = self._line_of.get(original_node)
        if line is None or line not in self._parts:
            return updated_node
        call = _call(HOOKS[self._parts[line]], line, _in_parentheses(updated_node.iter))
        space = updated_node.whitespace_after_in
        if isinstance(space, cst.SimpleWhitespace) and not space.value:
            space = cst.SimpleWhitespace(" ")  # `for x in[1, 2]` needs none; before a name it does
        return updated_node.with_changes(iter=call, whitespace_after_in=space)

    def leave_While(
        self, original_node: cst.While, updated_node: cst.While
    ) -> cst.BaseStatement | cst.FlattenSentinel[cst.BaseStatement]:
        line = self._line_of[original_node]
        if line not in self._parts:
            return updated_node
        hook = _call(HOOKS[self._parts[line]], line)
        test = cst.BooleanOperation(hook, cst.And(), _in_parentheses(updated_node.test))
        enter = cst.SimpleStatementLine([cst.Expr(_call(ENTER, line))], leading_lines=updated_node.leading_lines)
        ended, otherwise = _statement(HOOKS[self._parts[line]], line, "ended"), updated_node.orelse
        otherwise = (
            cst.Else(cst.IndentedBlock([ended]))
            if otherwise is None
            else otherwise.with_changes(body=_begin_with(otherwise.body, ended))
        )
        looped = updated_node.with_changes(
            test=test, leading_lines=(), whitespace_after_while=cst.SimpleWhitespace(" "), orelse=otherwise
        )
        return cst.FlattenSentinel([enter, looped])


def _call(name: str, line: int, *args: cst.BaseExpression) -> cst.Call:
    values = [cst.Integer(str(line)), *args]
    return cst.Call(cst.Name(name), [cst.Arg(value) for value in values])


def _statement(name: str, line: int, keyword: str) -> cst.SimpleStatementLine:
    """`name(line, keyword=True)`."""
    tight = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    call = _call(name, line)
    argument = cst.Arg(cst.Name("True"), keyword=cst.Name(keyword), equal=tight)
    return cst.SimpleStatementLine([cst.Expr(call.with_changes(args=[*call.args, argument]))])


def _in_parentheses(node: cst.BaseExpression) -> cst.BaseExpression:
    """With one more pair: an unparenthesized tuple, a walrus or a lambda would change its meaning as an argument."""
    return node.with_changes(lpar=[cst.LeftParen(), *node.lpar], rpar=[*node.rpar, cst.RightParen()])


def parse_with_original_positions(source: str, instrumented: str) -> ast.Module:
    """Parse the instrumented source; every node stands where it stands in the original source, hooks where their loop does.

    So tracebacks, breakpoints and `inspect.getsource` speak of the file on disk. Hooks are renamed to names that no program
    uses (see `builtin_name`), because they live in `builtins`, not in the script's globals.
    """
    tree = ast.parse(instrumented)
    _Lockstep().match(tree, ast.parse(source))
    return tree


class _Lockstep:
    """Walks both trees together; they differ in nothing but the hooks."""

    def match(self, new: ast.AST, old: ast.AST) -> None:
        if isinstance(new, ast.For) and isinstance(old, ast.For) and self._is_hook(new.iter, old.iter):
            assert isinstance(new.iter, ast.Call)
            self._place_hook(new.iter, old.iter)
            self.match(new.iter.args[1], old.iter)
            self._match_fields(new, old, skip="iter")
        elif isinstance(new, ast.While) and isinstance(old, ast.While) and self._is_hooked_test(new.test, old.test):
            assert isinstance(new.test, ast.BoolOp)
            hook, test = new.test.values
            _copy_position(new.test, old.test)
            self._place_hook(hook, old.test)
            self.match(test, old.test)
            ended = new.orelse.pop(0)
            self._place_hook(ended, old)
            self._match_fields(new, old, skip="test")
            new.orelse.insert(0, ended)
        else:
            assert type(new) is type(old), (ast.dump(new), ast.dump(old))
            self._match_fields(new, old)
        _copy_position(new, old)

    def _match_fields(self, new: ast.AST, old: ast.AST, skip: str = "") -> None:
        for name, old_value in ast.iter_fields(old):
            if name == skip:
                continue
            new_value = getattr(new, name)
            if isinstance(old_value, list):
                self._match_lists(new_value, old_value)
            elif isinstance(old_value, ast.AST):
                self.match(new_value, old_value)

    def _match_lists(self, new: list[ast.AST], old: list[ast.AST]) -> None:
        position = 0
        for old_item in old:
            if self._is_told(new[position], "loaded") and not self._is_told(old_item, "loaded"):
                self._place_hook(new[position], old_item)  # at the beginning of a body
                position += 1
            if isinstance(old_item, ast.Break) and self._is_told(new[position], "left"):
                self._place_hook(new[position], old_item)
                position += 1
            if isinstance(old_item, ast.While) and self._is_enter(new[position]):
                self._place_hook(new[position], old_item)
                position += 1
            if isinstance(old_item, ast.AST):
                self.match(new[position], old_item)
            position += 1
            if isinstance(old_item, ast.stmt) and position < len(new) and self._is_told(new[position], "loaded"):
                self._place_hook(new[position], old_item)
                position += 1
        assert position == len(new), "instrumented source has statements of its own"

    @staticmethod
    def _is_told(node: Any, keyword: str) -> bool:
        """True for the statement `record_…(line, keyword=True)`."""
        is_call = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
        if not is_call or getattr(node.value.func, "id", "") not in HOOK_NAMES:
            return False
        return [one.arg for one in node.value.keywords] == [keyword]

    @staticmethod
    def _is_hook(new: ast.expr, old: ast.expr) -> bool:
        is_call = isinstance(new, ast.Call) and isinstance(new.func, ast.Name) and new.func.id in HOOK_NAMES
        return is_call and ast.dump(new) != ast.dump(old)

    @staticmethod
    def _is_hooked_test(new: ast.expr, old: ast.expr) -> bool:
        return ast.dump(new) != ast.dump(old)

    @staticmethod
    def _is_enter(new: ast.AST) -> bool:
        return (
            isinstance(new, ast.Expr) and isinstance(new.value, ast.Call) and getattr(new.value.func, "id", "") == ENTER
        )

    @staticmethod
    def _place_hook(hook: ast.AST, old: ast.AST) -> None:
        call = hook.value if isinstance(hook, ast.Expr) else hook
        assert isinstance(call, ast.Call)
        assert isinstance(call.func, ast.Name)
        call.func.id = builtin_name(call.func.id)
        for node in (hook, call, call.func, call.args[0], *call.keywords, *(one.value for one in call.keywords)):
            if isinstance(old, ast.While):
                _copy_start(node, old)
            else:
                _copy_position(node, old)


def _copy_position(new: ast.AST, old: ast.AST) -> None:
    for name in ("lineno", "col_offset", "end_lineno", "end_col_offset"):
        if hasattr(old, name):
            setattr(new, name, getattr(old, name))


def _copy_start(new: ast.AST, old: ast.stmt) -> None:
    """On the first line of a statement only: an inserted call must not seem to span the whole loop."""
    setattr(new, "lineno", old.lineno)  # noqa: B010 - ast.AST declares no such attribute
    setattr(new, "col_offset", old.col_offset)  # noqa: B010
    setattr(new, "end_lineno", old.lineno)  # noqa: B010
    setattr(new, "end_col_offset", old.col_offset + 5)  # noqa: B010
