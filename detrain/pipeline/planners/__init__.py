"""Planners: each finds a split of a profile into stages, and who runs them."""
