"""Small training scripts as users write them, with the nest and the loader that must be found in each, by theme."""

from .boundaries import BOUNDARIES
from .calls import CALLS
from .classes import CLASSES
from .files import FILES
from .functions import FUNCTIONS
from .lookalikes import LOOKALIKES
from .loops import LOOPS
from .program import Loader, Program
from .schemes import SCHEMES
from .torch_loaders import TORCH_LOADERS
from .updates import UPDATES

__all__ = ["Loader", "Program", "PROGRAMS", "QUICK"]

THEMES = {
    "loops": LOOPS,
    "torch loaders": TORCH_LOADERS,
    "classes": CLASSES,
    "calls": CALLS,
    "functions": FUNCTIONS,
    "boundaries": BOUNDARIES,
    "files": FILES,
    "updates": UPDATES,
    "lookalikes": LOOKALIKES,
    "schemes": SCHEMES,
}
PROGRAMS = {program.name: program for theme in THEMES.values() for program in theme}

#: One of each kind of difficulty; what `make test` traces.
QUICK = [
    "for_in_for",
    "while_with_a_new_iterator_at_its_end",
    "oddly_named_method",
    "class_with_a_generator_as_iter",
    "call_in_try_except_continue",
    "call_in_a_helper",
    "prefetching_thread",
    "generator_function",
    "function_that_reads_a_global",
    "update_in_a_third_file",
    "trainer_in_a_library",
    "by_hand_under_no_grad",
    "lbfgs_with_a_closure",
    "accumulation_of_four",
    "validation_before_and_after",
    "warm_up_with_backward_and_no_step",
    "only_validation",
    "critic_steps_in_a_loop",
    "folds",
]
#: Those of them that `make test` traces.
NEWCOMERS = ["call_in_a_helper", "generator_function", "trainer_in_a_library"]
