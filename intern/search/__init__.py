"""Search by words and by meaning: terms, ranking, embeddings."""
