"""What writes the tables and pictures of the documentation."""
