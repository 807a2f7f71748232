"""The ledger: what has been spent, written down before anything is released."""
