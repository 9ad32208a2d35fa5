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
)

__all__ = [
    "caches", "containers", "functions", "hdf5files", "iterators", "memory", "objects", "openfiles", "processes", "randomness",
    "references", "telltales",
]  # fmt: skip
