"""`python deterministic.py FRAMEWORK SCRIPT ARGS…`: the script with the settings of it that detrain makes, and no hook anywhere.

What these settings cost is not detrain's doing; see `prepare` in detrain/adapters/torch and detrain/adapters/tensorflow.
"""

import os
import runpy
import sys


def torch():
    import torch

    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    # As use_deterministic_algorithms(True, warn_only=True), without loading inductor.
    torch.set_deterministic_debug_mode("warn")


def tensorflow():
    import tensorflow as tf

    tf.random.set_seed(0)  # without a seed random operations are refused
    tf.config.experimental.enable_op_determinism()


{"torch": torch, "tensorflow": tensorflow}[sys.argv[1]]()
del sys.argv[:2]
sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
