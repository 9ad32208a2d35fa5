"""The process environment a run needs, and running a script exactly as `python` would."""
