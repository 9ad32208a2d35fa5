"""Experiments: models x budgets x planners and policies, from a file, with tables and pictures. Simulated; no framework is loaded."""
