"""Private federated training on Flower. Put your model and your data into task.py."""
