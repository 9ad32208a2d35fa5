"""The online policies of DTR: evict the storage that a heuristic finds cheapest, make again what is missing.

Compiled by numba: state is a tuple of arrays (`state.py`), everything else functions of it.
"""
