"""Makes a script of a notebook: the cells that a piece of code depends on, in the order in which the kernel first ran them."""

from __future__ import annotations

import ast
import builtins
import symtable
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from detrain.errors import UsageError

#: Names that a kernel gives to cells, with the line that gives them to a script.
_OF_KERNEL = {"display": "from IPython.display import display\n"}
_MAGIC = "get_ipython"
#: Names that every module has.
_OF_MODULES = frozenset({*vars(builtins), "__name__", "__file__", "__doc__", "__builtins__"})


@dataclass(frozen=True)
class Cell:
    """One cell as Python: without the lines that are IPython's (`%matplotlib inline`, `!pip install …`)."""

    source: str
    #: Names that it gives values to, at its top level.
    binds: frozenset[str]
    #: Names that it, or a function in it, takes from the top level.
    uses: frozenset[str]

    @classmethod
    def parse(cls, source: str) -> Cell:
        """A cell of Python source, as IPython has transformed it. Raises `SyntaxError`."""
        tree = ast.parse(source)
        kept = [statement for statement in tree.body if not _is_magic(statement)]
        if len(kept) < len(tree.body):
            source = "\n".join(ast.unparse(statement) for statement in kept)
        binds, uses = _names(source)
        return cls(source.rstrip() + "\n" if source.strip() else "", binds, uses)


def _is_magic(statement: ast.stmt) -> bool:
    return any(isinstance(node, ast.Name) and node.id == _MAGIC for node in ast.walk(statement))


def _names(source: str) -> tuple[frozenset[str], frozenset[str]]:
    """The names that source binds at its top level, and those that it takes from there, from before it or from itself."""
    top = symtable.symtable(source, "<cell>", "exec")
    binds = {one.get_name() for one in top.get_symbols() if one.is_assigned() or one.is_imported()}
    uses = {one.get_name() for one in top.get_symbols() if one.is_referenced()}
    pending = list(top.get_children())
    while pending:
        table = pending.pop()
        pending += table.get_children()
        names = [one for one in table.get_symbols() if one.is_global()]
        uses |= {one.get_name() for one in names if one.is_referenced()}
        binds |= {one.get_name() for one in names if one.is_declared_global() and one.is_assigned()}
    return frozenset(binds), frozenset(uses)


class Cells:
    """The cells that a kernel has run, each once: with its latest text, at the place of its first run."""

    def __init__(self, transform: Callable[[str], str]) -> None:
        """`transform`: makes Python of a cell's text, as IPython does before it runs it."""
        self._transform = transform
        self._cells: dict[str, Cell] = {}

    def record(self, text: str, name: str | None = None) -> None:
        """A cell has run. `name`: what tells it from others of the notebook; its text if None."""
        try:
            cell = Cell.parse(self._transform(text))
        except SyntaxError:
            return  # it has not run
        if name is not None and text in self._cells:  # it had run before the notebook's names for cells were asked for
            self._cells = {name if key == text else key: one for key, one in self._cells.items()}
        self._cells[name or text] = cell

    def script(self, code: str, name: str | None = None, results: Iterable[str] = ()) -> str:
        """The source of a script that does what `code` does, and before it the cells that it depends on.

        Args:
            code: the text of the last cell.
            name: what tells that cell from others, if it is one of the notebook: cells first run after it only give values.
            results: names that are needed at the end.

        Raises:
            UsageError: no cell gives a value to a name that is needed, or only a line of IPython's does (`files = !ls`).
        """
        last = Cell.parse(self._transform(code))
        before = self._before(name or code)
        chosen: set[str] = set()
        needed = last.uses | (frozenset(results) - last.binds)
        while True:  # until nothing more is needed: a cell may depend on a later one's names, in a function
            more = {
                key
                for key, cell in self._cells.items()
                if key != (name or code)
                and (cell.binds & needed or (key in before and _acts(cell) and cell.uses & needed))
            } - chosen
            if not more:
                break
            chosen |= more
            needed |= frozenset().union(*(self._cells[key].uses for key in more))
        parts = [self._cells[key] for key in self._cells if key in chosen]
        self._check(needed, [*parts, last])
        header = "".join(line for kernel_name, line in _OF_KERNEL.items() if kernel_name in needed)
        return "\n\n".join(text for text in (header, *(cell.source for cell in parts), last.source) if text)

    def _before(self, key: str) -> set[str]:
        """The cells that had run when this one first did; all if it never has."""
        keys = list(self._cells)
        return set(keys[: keys.index(key)] if key in self._cells else keys)

    @staticmethod
    def _check(needed: frozenset[str], cells: list[Cell]) -> None:
        bound = frozenset().union(*(cell.binds for cell in cells)) | _OF_MODULES | frozenset(_OF_KERNEL)
        missing = sorted(needed - bound)
        if missing:
            raise UsageError(
                f"no cell that this kernel has run gives a value to {', '.join(missing)} in Python. Run the cells above this one first; "
                "what a magic, an earlier %%detrain or an interrupted cell has made does not count"
            )


def _acts(cell: Cell) -> bool:
    """True if a cell does more than give values to names: what it does may change those that it uses."""
    plain = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return not all(isinstance(statement, plain) for statement in ast.parse(cell.source).body)
