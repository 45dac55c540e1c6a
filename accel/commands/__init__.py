"""The commands of the command line, one module each: ``run(options)`` does the work and returns the exit code."""
