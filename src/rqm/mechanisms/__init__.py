"""Mechanisms: how each client encodes its vector, and with which probabilities. One file per mechanism."""
