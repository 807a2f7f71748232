"""Simulated federated training: cohorts, client updates, the secure sum, the server's step, and `rqm.train`."""
