"""Databases that hold the tables: SQLite and PostgreSQL."""
