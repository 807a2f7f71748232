"""What the adviser proposes, and how it ranks."""
