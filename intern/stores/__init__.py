"""Data on disk: archive, topics, decisions, indices, the database."""
