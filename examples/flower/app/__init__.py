"""Four silos train together on Flower: ε ≤ 8 for each record."""
