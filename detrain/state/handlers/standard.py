"""Importing this registers every handler that needs no framework, and the passes that follow each walk."""

from detrain.state import addresses, sharing
from detrain.state.handlers import (
    caches,
    class_objects,
    compare_only,
    containers,
    csvfiles,
    functions,
    hdf5files,
    iterators,
    lmdbs,
    log_writers,
    loggers,
    memory,
    objects,
    openfiles,
    pickling,
    processes,
    randomness,
    references,
    workers,
)

__all__ = [
    "addresses", "caches", "class_objects", "compare_only", "containers", "csvfiles", "functions", "hdf5files", "iterators", "lmdbs",
    "log_writers", "loggers", "memory", "objects", "openfiles", "pickling", "processes", "randomness", "references", "sharing", "workers",
]  # fmt: skip
