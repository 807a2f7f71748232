"""A client's vector on its way to a secure sum and back: clipped, rotated, encoded, decoded, with its guarantee."""
