"""Attackers that ship with the product: they try to break its claims by sampling."""
