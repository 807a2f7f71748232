"""Four silos train together on Flower: a record's ε ≤ 8."""
