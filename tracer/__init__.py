"""The two-round tracer: round one finds the loops, round two what grows with the data; imported as `detrain.tracer`."""
