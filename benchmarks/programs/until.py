"""`python until.py N plain|settrace SCRIPT ARGS…`: run a script until its N-th optimizer step, and end there at once, saying so.

`settrace` puts the kind of tracer under it that reads the local variables at every line of everything but the standard library.
"""

import os
import runpy
import sys
import sysconfig

from torch.optim.optimizer import register_optimizer_step_post_hook

STANDARD = sysconfig.get_paths()["stdlib"] + os.sep
PACKAGES = (sysconfig.get_paths()["purelib"], sysconfig.get_paths()["platlib"])

REACHED = "the last step"
limit, kind = int(sys.argv[1]), sys.argv[2]
seen: dict[str, int] = {}


def read_locals(frame, event, argument):  # as sys.settrace calls it
    if event == "call" and is_skipped(frame.f_code.co_filename):
        return None
    for name, value in frame.f_locals.items():
        seen[name] = id(type(value))
    return read_locals


def is_skipped(filename: str) -> bool:
    """True for the standard library, as in the prototype; torch is traced."""
    return filename.startswith(("<", STANDARD)) and not filename.startswith(PACKAGES)


def stop_at_the_last(*_: object) -> None:
    """Count a step."""
    global limit
    limit -= 1
    if limit == 0:
        print(REACHED, flush=True)
        os._exit(0)


register_optimizer_step_post_hook(stop_at_the_last)
del sys.argv[:3]
sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
if kind == "settrace":
    sys.settrace(read_locals)
runpy.run_path(sys.argv[0], run_name="__main__")
