"""Live objects to a state tree (capture) and back into the live objects (restore); knows no framework."""
