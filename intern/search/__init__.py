"""Finding by words: what is asked of the store, and in which order what it found is shown."""
