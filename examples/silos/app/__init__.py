"""An example of private federated training on Flower."""
