"""Small training scripts as users write them, one for each shape that a resume must get right, by theme.

Each prints a line `batch EPOCH BATCH LOSS` per batch, other lines around its epochs, and ends by writing fingerprints
of what it has trained. A few milliseconds of sleep per batch stand for the work of a real step, so that a kill can be
aimed.
"""

from dataclasses import dataclass, field

from .files import FILES
from .holders import HOLDERS
from .iterables import ITERABLES
from .loaders import LOADERS
from .loops import LOOPS
from .optimizers import OPTIMIZERS
from .phases import PHASES
from .places import PLACES
from .prelude import PRELUDE
from .state import STATE
from .unusual import UNUSUAL
from .values import VALUES


@dataclass(frozen=True)
class Program:
    """One script with the files that it needs beside it."""

    name: str
    script: str
    files: dict[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)  # beside what every program gets
    is_whole: bool = (
        False  # its attempts are started as a user starts them, never forked from a process that has loaded all
    )

    @property
    def sources(self) -> dict[str, str]:
        """File name to text."""
        return {"train.py": self.script, **self.files}


def _program(name: str, text: str | dict[str, str]) -> Program:
    files = {"train.py": text} if isinstance(text, str) else text
    files = {file: PRELUDE + body if file == "train.py" else body for file, body in files.items()}
    files = {file: body.replace("#PRELUDE\n", PRELUDE) for file, body in files.items()}
    return Program(name, files.pop("train.py"), files)


_THEMES = [LOADERS, ITERABLES, LOOPS, STATE, HOLDERS, PLACES, OPTIMIZERS, PHASES, FILES, UNUSUAL, VALUES]
PROGRAMS = {name: _program(name, text) for theme in _THEMES for name, text in theme.items()}

#: One of each kind of difficulty; what `make test-all` runs.
QUICK = [
    "state_of_classes",
    "owners_of_threads",
    "kept_by_address",
    "hooks_and_queues_made_in_the_loop",
    "events_and_thread_locals",
    "caches_of_random_numbers",
    "generators_that_share_and_spawn",
    "shared_memory_counters",
    "scripted_model",
    "data_in_hdf5_and_gzip",
    "weak_references_to_what_lies_deep",
    "hook_handle_kept_over_epochs",
    "variables_deleted_in_the_loop",
    "closure_first_made_in_the_loop",
    "loader_workers_2",
    "state_kept_by_workers",
    "loader_workers_2_persistent",
    "loader_enumerate_tqdm",
    "iterable_dataset",
    "stream_of_workers_kept_over_epochs",
    "generator_loader",
    "endless_next",
    "loader_that_starts_over",
    "while_true",
    "early_stopping_best_state",
    "two_loops_per_epoch",
    "folds",
    "folds_with_classes_of_their_own",
    "images_and_work_in_threads",
    "phases",
    "trainer_generator_used_twice",
    "accumulation_modulo",
    "csv_held_open",
    "csv_writer_made_in_the_loop",
    "newest_checkpoints_kept",
    "resumes_by_itself",
    "cycle_loader",
    "nothing_seeded",
    "functional_training",
    "iterators_over_what_the_loop_changes",
    "iterators_held_by_generators",
    "feed_that_takes_from_its_own_iterator",
    "fetched_ahead_by_generators",
    "training_in_a_generator_counted",
    "csv_reader_that_the_body_reads",
    "tensor_under_tqdm",
    "logging_set_up_in_the_loop",
    "names_that_mislead",
    "given_to_torch_for_everything",
    "second_stage_made_in_the_loop",
    "members_with_own_hashes",
    "looks_into_arrays",
    "storages_that_change_their_size",
    "queues_and_loggers",
    "losses_summed_with_their_graphs",
    "generators_in_many_places_of_workers",
    "entropy_drawn_by_workers",
    "semaphores",
    "objects_sent_back_by_spawned_processes",
]
#: Those of them that `make test` runs.
NEWCOMERS = [
    "hooks_and_queues_made_in_the_loop", "generators_that_share_and_spawn", "scripted_model", "state_kept_by_workers",
    "loader_workers_2_persistent", "loader_enumerate_tqdm", "iterable_dataset", "fetched_ahead_by_generators",
    "two_loops_per_epoch", "folds",
    "resumes_by_itself", "iterators_held_by_generators", "second_stage_made_in_the_loop", "queues_and_loggers",
]  # fmt: skip
