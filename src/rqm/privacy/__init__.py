"""Privacy read off the mechanism's law: divergences, worst cases, certificates."""
