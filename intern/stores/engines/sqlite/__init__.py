"""SQLite, by apsw."""
