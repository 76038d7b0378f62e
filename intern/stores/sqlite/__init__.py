"""The SQLite database and what it holds."""
