"""Runs from a notebook or from Python: a cell or a function becomes a script, which `detrain run` runs in a process of its own.

`cells` chooses what of a notebook belongs to the script, `child` runs it, `magic` is `%%detrain`, and `function` is `detrain.run`.
"""
