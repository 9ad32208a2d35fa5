"""Environment variables that frameworks and their libraries read when they are loaded, or before."""

from __future__ import annotations

#: Set by the launcher unless the user has set them. Each line: what it fixes.
DEFAULTS = {
    "TORCHINDUCTOR_DETERMINISTIC": "1",  # torch.compile: no choice of kernels by timing
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # cuBLAS: without it deterministic mode refuses matrix products on CUDA
}

#: Further variables by which a user chooses threads, instruction sets or orders; a run keeps the values that it began with.
VARIABLES = ("CUBLAS_WORKSPACE_CONFIG", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "TF_ENABLE_ONEDNN_OPTS")
