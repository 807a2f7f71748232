"""What every room may use: checks of values, files, statistics, threads."""
