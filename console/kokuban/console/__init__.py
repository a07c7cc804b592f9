"""The console: the command line, what it shows, and the launcher that keeps its processes alive."""
