"""What the planners of `remat` and `pipeline` share. Pure."""
