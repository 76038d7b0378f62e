"""The SQLite database and its stores."""
