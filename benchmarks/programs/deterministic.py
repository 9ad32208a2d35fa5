"""`python deterministic.py SCRIPT ARGS…`: the script with the settings of torch that detrain makes, and no hook anywhere.

What these settings cost is not detrain's doing; see `prepare` in detrain/adapters/torch.
"""

import os
import runpy
import sys

import torch

torch.backends.cudnn.benchmark = False
torch.backends.cudnn.deterministic = True
torch.set_deterministic_debug_mode(
    "warn"
)  # as use_deterministic_algorithms(True, warn_only=True), without loading inductor

del sys.argv[0]
sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
