"""What a script sees of the machine: clocks, process id, printed output, signals; recorded, and replayed by later attempts."""
