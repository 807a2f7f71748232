"""Who takes part, what is assumed of the adversary, and what all rounds together guarantee."""
