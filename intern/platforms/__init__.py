"""Chat platforms, one adapter each."""
