"""Importing this registers every handler that needs no framework."""

from detrain.state import (
    addresses,
    caches,
    containers,
    csvfiles,
    functions,
    hdf5files,
    iterators,
    loggers,
    memory,
    objects,
    openfiles,
    pending,
    processes,
    randomness,
    references,
    telltales,
    workers,
)

__all__ = [
    "addresses", "caches", "containers", "csvfiles", "functions", "hdf5files", "iterators", "loggers", "memory", "objects", "openfiles",
    "pending", "processes", "randomness", "references", "telltales", "workers",
]  # fmt: skip
