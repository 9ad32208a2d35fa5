"""Importing this registers every handler that needs no framework."""

from detrain.state import containers, functions, iterators, objects, openfiles, randomness

__all__ = ["containers", "functions", "iterators", "objects", "openfiles", "randomness"]
