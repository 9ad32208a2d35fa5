"""What detrain knows about each framework; the only place that imports one.

Every adapter is a module with the same functions, loaded when the script has loaded the framework:

- `prepare(settings)`: make it deterministic and seed it, before the script's next statement;
- `generators()`: the process-wide generators of random numbers, by name;
- `flags()` / `set_flags(flags)`: process-wide switches that belong to the state (default dtype, grad mode, threads);
- `facts()`: versions and instruction sets that the bits depend on;
- `watch_updates(on_update, on_gradient)`: report weight updates and gradient computations; `losses(outputs)`: what
  gives the bits and the number of each loss among what gradients are computed of;
- `SHORTAGES`: the class of the error that says that a device has no memory left;
- for the tracer: `watch_in_place(on_update)` reports updates made by hand, `loader_of(value)` gives the class of a well-known loader,
  `is_trained(value)` knows models and optimizers, `Flow()` tells what flows into gradients.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

#: Framework to the module that knows it.
NAMES = {
    "numpy": "detrain.adapters.numpy",
    "torch": "detrain.adapters.torch",
    "tensorflow": "detrain.adapters.tensorflow",
    "keras": "detrain.adapters.keras",
}


#: Libraries' files in which training loops stand (the ends of their paths), and the functions in which: those carry hooks.
LOOPS = {
    "keras/src/backend/jax/trainer.py": "fit",
    "keras/src/backend/tensorflow/trainer.py": "fit",
    "keras/src/backend/torch/trainer.py": "fit",
}


def function_in(filename: str) -> str | None:
    """The function of a library's file in which its training loops stand; None if that is not known."""
    return next((name for end, name in LOOPS.items() if filename.endswith(f"{os.sep}{end}")), None)


@dataclass(frozen=True)
class Settings:
    """What `prepare` is told."""

    seed: int
    is_deterministic: bool
    #: Lets this process draw from streams of entropy that are a function of two numbers alone; can be pickled.
    key_entropy: Callable[[int, int], None]
    #: Lets a worker process outlast what is sent to the whole process group; told the main process; can be pickled.
    outlast: Callable[[int], None]
    #: Told of the size of each group of processes that the script joins.
    on_group: Callable[[int], None] = lambda _: None
