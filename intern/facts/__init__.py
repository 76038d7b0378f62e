"""Nuggets and facts: extraction, reconciliation, visibility, pseudonyms."""
