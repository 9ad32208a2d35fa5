"""A run while it runs: position, when to save, fast-forward. `session.Session` is the one mutable object."""
