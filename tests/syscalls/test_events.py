"""Audit events that are heard: told with their arguments, before Python does what they announce; the others reach no line of Python."""

from __future__ import annotations

HEARS = """
import os, sys, threading
from detrain.world import preload
told = []
def tell(event, args):
    told.append((event, *args))
    if event == "refused":
        raise LookupError(*args)
assert preload.hear_events(tell, ["heard", "refused"])
"""


def test_what_is_heard_is_told_with_its_arguments(python):
    code = (
        HEARS
        + 'sys.audit("heard", 1, [2]); sys.audit("unheard", 3); sys.audit("hear"); sys.audit("heard"); print(told)'
    )
    assert python(code) == "[('heard', 1, [2]), ('heard',)]\n"


def test_what_the_hearer_raises_is_raised_where_the_event_is(python):
    code = HEARS + 'try: sys.audit("refused", 5)\nexcept LookupError as error: print(error)'
    assert python(code) == "5\n"


def test_events_of_threads_and_forked_children_are_told(python):
    code = HEARS + (
        'thread = threading.Thread(target=sys.audit, args=("heard", 1)); thread.start(); thread.join()\n'
        "child = os.fork()\n"
        'if not child: sys.audit("heard", 2); print(told, flush=True); os._exit(0)\n'
        "os.waitpid(child, 0); print(told)"
    )
    assert python(code) == "[('heard', 1), ('heard', 2)]\n[('heard', 1)]\n"


def test_nothing_is_told_while_the_interpreter_ends(python):
    code = HEARS + (
        "class Late:\n"
        "    def __del__(self, audit=sys.audit): audit('heard', 'late')\n"
        "sys.late = Late(); tell.__globals__['told'] = type('L', (), {'append': lambda _, one: print(one, flush=True)})()\n"
        'sys.audit("heard", "soon")'
    )
    assert python(code) == "('heard', 'soon')\n"


def test_there_is_one_hearer_in_a_process(python):
    assert python(HEARS + 'print(preload.hear_events(print, ["heard"]))') == "False\n"
