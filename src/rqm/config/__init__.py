"""The plan of a run and its privacy: what is to be computed, what that guarantees, and the guard that charges for it.

Nothing here needs torch.
"""
