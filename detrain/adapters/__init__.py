"""What detrain knows about each framework; the only place that imports one. `protocol` says what is asked of it."""
