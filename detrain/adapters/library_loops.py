"""Training loops that stand in files of libraries: which of these files are instrumented before a run has shown its loops."""

from __future__ import annotations

import os
import re

from detrain.adapters.imports import ADAPTERS

#: The end of a file's path, to the function that holds the training loops; these files are instrumented as the script's are.
_LOOPS = {
    "keras/src/backend/jax/trainer.py": "fit",
    "keras/src/backend/tensorflow/trainer.py": "fit",
    "keras/src/backend/torch/trainer.py": "fit",
}

#: What is called, or named, where weights are trained. A library's file without any of these words holds no training loop, nor the loop
#: around one; with one of them it may, and the run shows which of its loops do.
_TRAINING = re.compile(
    rb"\b(?:apply_gradients|optimizer_step|train_batch|train_on_batch|train_step|training_step)\b"
    # As calls only: many a comment speaks of backward compatibility.
    rb"|\.backward\s*\(|\boptim\w*\.step\s*\(|\bself\.train\s*\("
)
#: Where there is any of it, one of these stands: to look for them takes a seventh of the time.
_WORDS = (
    b"apply_gradients", b"optimizer_step", b"train_batch", b"train_on_batch", b"train_step", b"training_step",
    b".backward", b".step", b"self.train",
)  # fmt: skip
_LOOP = re.compile(rb"^\s*(?:for|while)\b", re.MULTILINE)
#: Folders of installed packages.
_PACKAGES = frozenset({"site-packages", "dist-packages"})
#: Frameworks train in what calls them, not in themselves.
_FRAMEWORKS = frozenset(ADAPTERS)


def function_in(filename: str) -> str | None:
    """The function of a library's file in which its training loops stand; None if that is not known."""
    return next((name for end, name in _LOOPS.items() if filename.endswith(f"{os.sep}{end}")), None)


def is_frameworks(filename: str) -> bool:
    """True for a file of one of the frameworks that have an adapter, wherever it is installed."""
    parts = filename.split(os.sep)
    places = [number for number, part in enumerate(parts) if part in _PACKAGES]
    # An environment may be called `torch`; only without such a folder every part of the path counts.
    inside = parts[places[-1] + 1 :][:1] if places else parts
    return not _FRAMEWORKS.isdisjoint(inside)


def has_known(folder: str) -> bool:
    """True for a folder with a file whose function `function_in` names."""
    return any(folder.endswith(os.sep + os.path.dirname(end)) for end in _LOOPS)


def may_train(content: bytes) -> bool:
    """True if a library's file with this content may hold a training loop: it has loops, and names what is called to train."""
    if not any(word in content for word in _WORDS):
        return False
    return _TRAINING.search(content) is not None and _LOOP.search(content) is not None
