"""A seed for random operations where TensorFlow has none: with deterministic kernels it refuses to make them unseeded.

The eager context is given one before the script begins. A graph of the script's own begins without, and so does a context that was
reset, or whose seed was taken away by `tf.random.set_seed(None)`.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from tensorflow.python.eager import context
from tensorflow.python.framework import ops, random_seed


def replace(seed: int) -> None:
    """Let operations without a seed of their own have `seed` for the global one, where that is unset."""
    plain = random_seed.get_seed

    @wraps(plain)
    def get_seed(op_seed: Any) -> Any:
        if op_seed is None and context.executing_eagerly():
            if context.global_seed() is None:
                context.set_global_seed(seed)
        elif op_seed is None and ops.get_default_graph().seed is None:
            ops.get_default_graph().seed = seed
        return plain(op_seed)

    random_seed.get_seed = get_seed
