"""Federated training: who has which data, the models, the plan of a run and the loop that carries it out."""
