"""PostgreSQL, by psycopg (extra `postgres`)."""
