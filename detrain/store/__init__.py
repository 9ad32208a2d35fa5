"""Bytes on disk: checkpoint files, the run directory, comparison of two of them. Knows no live object."""
