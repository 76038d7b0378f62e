"""PostgreSQL (extra `intern[postgres]`): one database for one community or for many."""
