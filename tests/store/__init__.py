"""Tests of `detrain.store`."""
