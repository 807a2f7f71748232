"""The adviser: which mechanism reaches an ε with the least error, and tables found by optimization."""
