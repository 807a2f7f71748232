"""Reports of runs, plots of results, the paper's figures, and the explorer."""
