"""Runs in remote storage: the local run directory is the truth, and a process beside the training publishes it."""
