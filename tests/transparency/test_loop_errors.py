"""Loops that fail, each in another place: the same lines, the same carets."""

from collections.abc import Callable
from typing import Any

Same = Callable[..., Any]

ERRORS = """
    import sys, traceback
    table = {"a": 1, "b": 2}

    def dict_grows():
        for key in table:
            table[key + "x"] = 1

    def dict_shrinks():
        for key, value in table.items():
            table.pop(key)

    def set_changes(s):
        for x in s: s.add(x + 1)

    def list_grows(rows):
        for row in rows:
            if len(rows) > 5: raise OverflowError(len(rows))
            rows.append(row)

    def unpack(rows):
        for (a,
             b) in rows:
            print(a)

    def not_an_iterator():
        class Bad:
            def __iter__(self):
                return 1
        for x in Bad(): pass

    def condition():
        n = 2
        while 1 / (
            n := n - 1
        ):
            continue

    def in_else():
        for x in (): pass
        else:
            undefined

    def in_handler():
        for x in [1]:
            try:
                1 / 0
            except ZeroDivisionError:
                for y in [2]:
                    raise KeyError(y)

    def in_finally():
        while True:
            try:
                break
            finally:
                for x in [1]: x.missing

    def in_comprehension():
        for x in [1]: return [1 / (y - x) for y in range(3)]

    def in_nested_generator():
        for x in (1 / y for y in (1, 0)): pass

    def in_target():
        cells = []
        for cells[3] in [1]: pass

    def in_lambda():
        for f in [lambda v: v.missing]: f(1)

    def with_cause():
        for x in [1]:
            raise ValueError(x) from KeyError("cause")

    def from_none():
        for x in [1]:
            try: 1 / 0
            except ZeroDivisionError: raise ValueError(x) from None

    def deleted():
        for x in [1]:
            del x
            print(x)

    def long_lines():
        for x in [1]:
            print("a" * 3, {"k": [1, 2, 3]}["k"][0], {"k": [1, 2, 3]}["k"][9], "b" * 3) or sum(y for y in range(3))

    class Body:
        def __init__(self):
            for self.x in [1]:
                self.missing()

    def exit_from_with():
        class Manager:
            def __enter__(self): return self
            def __exit__(self, *error): raise OSError("while leaving")
        for x in [1]:
            with Manager():
                continue

    def stops():
        def rows():
            for x in [1]:
                next(iter(()))
                yield x
        for row in rows(): pass

    for f in (dict_grows, dict_shrinks, set_changes, list_grows, unpack, not_an_iterator, condition, in_else,
              in_handler, in_finally, in_comprehension, in_nested_generator, in_target, in_lambda, with_cause,
              from_none, deleted, long_lines, Body, exit_from_with, stops):
        try:
            f(*{"set_changes": [{1}], "list_grows": [[1]], "unpack": [[(1, 2), (3,)]]}.get(f.__name__, []))
        except Exception:
            print("---", f.__name__, file=sys.stderr)
            traceback.print_exc()
    for key in table:
        table[key + "y"] = 1
    """


def test_errors_in_loops_show_the_same_lines_and_carets(same: Same) -> None:
    outcome = same(ERRORS, status=1, says="dictionary changed size during iteration")
    assert outcome.stderr.count("--- ") == 21
    assert outcome.stderr.count("Traceback (most recent call last)") == 24


def test_errors_in_loops_of_an_imported_module_show_the_same_lines(same: Same) -> None:
    script = "for k in range(1):\n    import errors\n"
    outcome = same(script, files={"errors.py": ERRORS}, status=1, says="dictionary changed size during iteration")
    assert outcome.stderr.count("errors.py") > 24
