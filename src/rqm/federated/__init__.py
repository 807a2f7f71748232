"""The old name of ``rqm.training``, for ``python -m rqm.federated``."""
