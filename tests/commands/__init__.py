"""Tests of the commands, as processes."""
