"""Correlated noise: what a whole run reveals if part of a round's noise is canceled in the next one."""
