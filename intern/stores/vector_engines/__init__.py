"""Vector databases: Qdrant and Chroma."""
