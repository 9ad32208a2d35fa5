"""Rematerialization of a running program: steps are recorded, and activations are evicted and made again within a memory budget."""
