"""Used by all packages: checks of values, files, imports, numerics, text, threads."""
