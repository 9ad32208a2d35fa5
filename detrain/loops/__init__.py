"""Everything about one loop: where it stands in the source, which loops are the training's, and where each of them is."""
