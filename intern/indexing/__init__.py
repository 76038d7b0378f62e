"""Indexing: one paragraph on each source and each topic, rewritten only when its text has changed."""
