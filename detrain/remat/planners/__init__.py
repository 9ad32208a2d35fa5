"""Planners: a graph and a budget in bytes to a schedule."""
