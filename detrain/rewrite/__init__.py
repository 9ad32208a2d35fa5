"""Source and sites to instrumented source, and the import hook that runs it instead of the original."""
