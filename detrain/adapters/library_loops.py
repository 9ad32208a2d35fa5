"""Training loops that stand in files of libraries, and are known before a run has shown them."""

from __future__ import annotations

import os

#: The end of a file's path, to the function that holds the training loops; these files are instrumented as the script's are.
_LOOPS = {
    "keras/src/backend/jax/trainer.py": "fit",
    "keras/src/backend/tensorflow/trainer.py": "fit",
    "keras/src/backend/torch/trainer.py": "fit",
}


def function_in(filename: str) -> str | None:
    """The function of a library's file in which its training loops stand; None if that is not known."""
    return next((name for end, name in _LOOPS.items() if filename.endswith(f"{os.sep}{end}")), None)
