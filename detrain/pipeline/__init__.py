"""Pipelines: a profiled model over the devices of a topology, planned and simulated. Data in, data out; no framework."""
