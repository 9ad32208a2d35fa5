"""detrain: training runs that can be killed at any moment and come out bit for bit the same."""

__version__ = "0.1.0"
