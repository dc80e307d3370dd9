"""The command line: one file for each group of commands, each a thin layer over the public API."""
