"""The clock that detrain times itself by: bound before another takes its place in `time`, which is the script's and slower to ask."""

from time import monotonic

__all__ = ["monotonic"]
