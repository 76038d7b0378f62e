"""Qdrant as a vector engine."""
