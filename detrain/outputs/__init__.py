"""The files that the script writes: recorded while it runs, and put back before a later attempt."""
