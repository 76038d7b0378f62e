"""PostgreSQL (the extra `postgres`): one database for one community or for many."""
