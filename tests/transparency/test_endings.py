"""Every way a script can end."""

from collections.abc import Callable
from typing import Any

import pytest

Same = Callable[..., Any]

EXITS = {  # a script that ends itself: its status, and what it says
    "sys_exit_with_a_number": ("import sys\nprint('before')\nsys.exit(3)\n", 3, "before"),
    "sys_exit_with_a_text": ("import sys\nsys.exit('no such file')\n", 1, "no such file"),
    "sys_exit_with_none": ("import sys\nsys.exit()\n", 0, ""),
    "sys_exit_with_a_tuple": ("import sys\nsys.exit((1, 'two'))\n", 1, "(1, 'two')"),
    "sys_exit_with_a_negative_number": ("import sys\nsys.exit(-1)\n", 255, ""),
    "exit": ("exit()\n", 0, ""),
    "quit_with_a_number": ("for i in range(9):\n    if i == 4: quit(i)\n", 4, ""),
    "system_exit_raised_from_an_error": (
        "try:\n    1/0\nexcept Exception as e:\n    raise SystemExit(5) from e\n",
        5,
        "",
    ),
    "a_subclass_of_system_exit": ("class Done(SystemExit): pass\nraise Done(7)\n", 7, ""),
    "os_exit_skips_everything": (
        "import os, atexit\natexit.register(print, 'no')\nprint('lost', end='')\nos._exit(5)\n",
        5,
        "",
    ),
    "abort": ("import os, resource\nresource.setrlimit(resource.RLIMIT_CORE, (0, 0))\nos.abort()\n", -6, ""),
    "keyboard_interrupt_raised": ("raise KeyboardInterrupt\n", -2, "KeyboardInterrupt"),
    "an_exec_into_another_program": (
        "import os\nimport sys\nprint(1, flush=True)\n"
        "os.execv(sys.executable, [sys.executable, '-c', 'print(2); exit(6)'])\n",
        6,
        "2",
    ),
    "assertion_error_without_text": ("x = [1]\nassert x == [2]\n", 1, "AssertionError"),
    "an_error_whose_str_fails": (
        "class E(Exception):\n    def __str__(self): raise ValueError('no text')\nraise E\n",
        1,
        "<exception str() failed>",
    ),
    "an_error_with_notes": ("e = ValueError('x')\ne.add_note('a note')\nraise e\n", 1, "a note"),
    "an_error_group": ("raise ExceptionGroup('two', [ValueError(1), TypeError(2)])\n", 1, "TypeError: 2"),
}


@pytest.mark.parametrize("name", EXITS)
def test_a_script_ends_itself(same: Same, name: str) -> None:
    script, status, says = EXITS[name]
    same(script, status=status, says=says)


def test_a_script_ends_normally(same: Same) -> None:
    script = (
        "for i in range(3):\n    print(i)\nimport sys\nprint('to stderr', file=sys.stderr)\nprint('no newline', end='')"
    )
    assert same(script, says="to stderr").stdout == "0\n1\n2\nno newline"


def test_an_uncaught_exception_shows_the_script_alone(same: Same) -> None:
    outcome = same(
        """
        def outer(n):
            for i in range(n):
                def inner(k):
                    while True:
                        k -= 1
                        if k < 0:
                            return {"a": [1, 2]}["a"][k + 7] + (1 if k else 2)
                inner(i)

        print("before")
        outer(3)
        """,
        status=1,
        says=["IndexError: list index out of range", "^^^^"],
    )
    assert outcome.stderr.count("File ") == 3


def test_chained_exceptions_keep_their_order(same: Same) -> None:
    same(
        """
        def read(name):
            try:
                return {}[name]
            except KeyError as error:
                raise ValueError(f"no {name}") from error

        for name in ("a", "b"):
            try:
                read(name)
            except ValueError:
                int("not a number")
        """,
        status=1,
        says=["direct cause", "During handling"],
    )


def test_an_exception_in_an_imported_module_shows_its_lines(same: Same) -> None:
    sibling = """
    def total(rows):
        result = 0
        for row in rows:
            for cell in row:
                result += 1 / cell
        return result
    """
    outcome = same(
        "import sibling\nfor k in range(2):\n    print(sibling.total([[1, 2], [3 - 3 * k]]))\n",
        files={"sibling.py": sibling},
        status=1,
        says="ZeroDivisionError",
    )
    assert "sibling.py" in outcome.stderr
    assert "result += 1 / cell" in outcome.stderr


def test_an_exception_while_importing_a_module_shows_both_lines(same: Same) -> None:
    same("import sibling\n", files={"sibling.py": "x = 1\nfor i in range(2):\n    x /= i\n"}, status=1, says="x /= i")
    same("import missing_module\n", status=1, says="ModuleNotFoundError: No module named 'missing_module'")


def test_an_iterator_that_fails_is_shown_at_the_loop_header(same: Same) -> None:
    outcome = same(
        """
        class Rows:
            def __iter__(self):
                self.n = 0
                return self

            def __next__(self):
                self.n += 1
                if self.n == 3:
                    raise OSError("the disk is gone")
                return self.n

        def epoch():
            for row in Rows():
                print(row)

        epoch()
        """,
        status=1,
        says="OSError: the disk is gone",
    )
    assert "    for row in Rows():\n" in outcome.stderr


def test_a_loop_over_what_is_not_iterable_fails_as_ever(same: Same) -> None:
    same("def f(n):\n    for i in n:\n        pass\nf(3)\n", status=1, says="'int' object is not iterable")
    same("for a, b in [(1, 2), (3,)]:\n    print(a)\n", status=1, says="not enough values to unpack")
    same("def f():\n    while missing:\n        pass\nf()\n", status=1, says="name 'missing' is not defined")


def test_exit_handlers_run_after_the_traceback_and_in_reverse(same: Same) -> None:
    outcome = same(
        """
        import atexit, sys, threading, time

        def note(text):
            print(text, file=sys.stderr, flush=True)

        def late():
            time.sleep(0.2)
            note("thread")

        class Fails:
            def __repr__(self):  # without an address
                return "fails"

            def __call__(self):
                raise RuntimeError("in a handler")

        atexit.register(note, "registered first")
        atexit.register(Fails())
        atexit.register(lambda: note(f"last error {sys.last_value!r}, running {sys.exc_info()[0]}"))
        threading.Thread(target=late).start()
        raise ValueError("the end")
        """,
        status=1,
        says="last error ValueError('the end')",
    )
    order = [outcome.stderr.index(text) for text in ("ValueError: the end", "thread", "in a handler", "first")]
    assert order == sorted(order)


def test_a_thread_outlives_the_main_thread_and_a_daemon_does_not(same: Same) -> None:
    same(
        """
        import sys, threading, time

        def work(name, seconds):
            for i in range(3):
                time.sleep(seconds)
                print(name, i, flush=True)

        threading.Thread(target=work, args=("worker", 0.05)).start()
        threading.Thread(target=work, args=("daemon", 30), daemon=True).start()
        print("main is done", threading.active_count(), flush=True)
        sys.exit(9)
        """,
        status=9,
        says="worker 2",
    )


def test_an_exception_in_a_thread_is_reported_and_the_script_goes_on(same: Same) -> None:
    same(
        """
        import threading

        def work():
            for i in range(3):
                1 / (1 - i)

        thread = threading.Thread(target=work, name="loader")
        thread.start()
        thread.join()
        print("still here")
        """,
        says=["Exception in thread loader", "still here"],
    )


def test_the_scripts_own_excepthook_sees_its_own_frames_only(same: Same) -> None:
    same(
        """
        import sys, traceback

        def hook(kind, error, trace):
            frames = [(f.f_code.co_name, n) for f, n in traceback.walk_tb(trace)]
            print(kind.__name__, error, frames, error.__traceback__ is trace, error.__context__)

        sys.excepthook = hook

        def f():
            for i in [1]:
                raise KeyError("k")

        f()
        """,
        status=1,
        says="[('<module>', 13), ('f', 11)]",
    )


def test_destructors_run_at_the_end_as_under_python(same: Same) -> None:
    same(
        """
        import weakref

        class Model:
            def __init__(self, name):
                self.name = name

            def __del__(self):
                print("del", self.name)

        kept = Model("global")
        weakref.finalize(kept, print, "finalize")
        cycle = [Model("cycle")]
        cycle.append(cycle)
        for m in (Model("first"), Model("second")):
            pass
        del m
        print("end")
        """,
        says="del global",
    )


def test_a_broken_stdout_pipe_is_the_scripts_affair(same: Same) -> None:
    def close_reader(process: Any) -> None:
        process.stdout.close()
        process.stdin.write(b"go\n")

    script = """
        import sys
        print("ready", flush=True)
        sys.stdin.readline()
        for i in range(3):
            print("nobody reads this")
        """
    same(script, steer=close_reader, status=120, says="BrokenPipeError")  # found out when python flushes at the end
    same(script, steer=close_reader, status=1, says="BrokenPipeError", flags=["-u"])  # found out by print


def test_standard_input_reaches_the_script(same: Same) -> None:
    script = "import sys\nprint(input())\nfor line in sys.stdin:\n    print(repr(line))\n"
    assert same(script, stdin="one\ntwo\nthree").stdout == "one\n'two\\n'\n'three'\n"
    same("print(input())\n", status=1, says="EOFError")


SYNTAX_ERRORS = {
    "a_missing_colon": (b"print('never')\nfor i in range(3)\n    print(i)\n", "expected ':'"),
    "a_tab_too_many": (b"if True:\n\tx = 1\n        y = 2\n", "TabError"),
    "a_missing_indent": (b"def f():\nreturn 1\n", "IndentationError"),
    "a_return_outside": (b"for i in range(3):\n    return 3\n", "'return' outside function"),
    "a_string_left_open": (b"x = 1\nprint('open)\n", "unterminated string literal"),
    "a_continue_outside": (b"if True:\n    continue\n", "'continue' not properly in loop"),
    "an_unknown_encoding": (b"# -*- coding: no-such -*-\nx = 1\n", "no-such"),
    "bytes_that_are_not_utf_8": (b"x = 1\nprint('\xe9')\n", "SyntaxError"),
    "a_null_byte": (b"x = 1\nprint(1)\0\n", "null byte"),
}


@pytest.mark.parametrize("name", SYNTAX_ERRORS)
def test_a_syntax_error_in_the_script_looks_as_ever(same: Same, name: str) -> None:
    script, says = SYNTAX_ERRORS[name]
    same(script, status=1, says=says)


def test_a_syntax_error_in_an_imported_module_looks_as_ever(same: Same) -> None:
    same("import sibling\n", files={"sibling.py": "x = (1,\n"}, status=1, says="'(' was never closed")


def test_a_run_of_unittest_ends_with_its_status(same: Same) -> None:
    same(
        """
        import unittest

        class Sums(unittest.TestCase):
            def test_right(self):
                for i in range(3):
                    with self.subTest(i=i):
                        self.assertLess(i, 2)

        class Runner:  # without the time that the text runner prints
            def run(self, tests):
                result = unittest.TestResult()
                tests.run(result)
                print(result.testsRun, [text for _, text in result.failures])
                return result

        unittest.main(testRunner=Runner)
        """,
        status=1,
        says="AssertionError: 2 not less than 2",
    )
