"""Importing this registers every handler that needs no framework."""

from detrain.state import (
    caches,
    containers,
    functions,
    hdf5files,
    iterators,
    memory,
    objects,
    openfiles,
    processes,
    randomness,
    references,
    telltales,
    workers,
)

__all__ = [
    "caches", "containers", "functions", "hdf5files", "iterators", "memory", "objects", "openfiles", "processes", "randomness",
    "references", "telltales", "workers",
]  # fmt: skip
