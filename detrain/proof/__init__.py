"""Doing parts of a run again, where nothing of the user's can be touched: `verify` and `diff --op`."""
