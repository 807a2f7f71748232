"""Private federated training on Flower: put your model and your data into task.py."""
