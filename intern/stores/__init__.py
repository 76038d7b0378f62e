"""What is kept on disk: archive, topics, decisions, indices and the database. No store calls a model."""
