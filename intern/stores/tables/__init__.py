"""The tables of the database, on SQLite and on PostgreSQL: one statement serves both."""
