"""Rematerialization within a memory budget: graphs, schedules, planners, online policies. Data in, data out."""
