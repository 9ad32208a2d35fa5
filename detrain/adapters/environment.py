"""Environment variables that frameworks and their libraries read when they are loaded, or before."""

from __future__ import annotations

#: Set by the launcher unless the user has set them. Each line: what it fixes.
DEFAULTS = {
    "TORCHINDUCTOR_DETERMINISTIC": "1",  # torch.compile: no choice of kernels by timing
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # cuBLAS: without it deterministic mode refuses matrix products on CUDA
}

#: Further variables by which a user chooses threads, instruction sets or orders; a run keeps the values that it began with.
VARIABLES = (
    "CUBLAS_WORKSPACE_CONFIG", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "TF_ENABLE_ONEDNN_OPTS",
    # The order in which NCCL adds what the ranks have. (NCCL's documentation, "Environment Variables".)
    "NCCL_ALGO", "NCCL_PROTO", "NCCL_NTHREADS", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_MIN_CTAS", "NCCL_MAX_CTAS",
    "NCCL_NVLS_ENABLE", "NCCL_COLLNET_ENABLE", "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_TOPO_FILE",
)  # fmt: skip
