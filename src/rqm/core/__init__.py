"""The private mean: a public transform, a quantizer, and the guarantee of what the sum reveals."""
