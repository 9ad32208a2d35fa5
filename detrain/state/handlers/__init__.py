"""One file for each kind of object: how it is captured and restored. `standard` registers them all."""
