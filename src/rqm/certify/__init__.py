"""Certified bounds for one release: divergences, Gaussian DP and privacy profiles that hold for all
inputs."""
