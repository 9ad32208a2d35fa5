"""A script behaves under `detrain run` as under `python`."""
