"""Stores on disk: archive, topics, decisions, sources, indices, and the database. They never call a model.

One writer, as the folder's lock sees to: of each store, one thread at a time calls what writes. Reading may go on
in other threads meanwhile.
"""
