"""Pipelines that run: a live model profiled, split into the stages of a plan, and trained over them."""
