"""`detrain export`: a checkpoint as the files that other programs load. Weights and optimizers go on from there, not bit for bit."""
