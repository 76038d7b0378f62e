"""Ids, messages, errors, clock, log and text, for all other packages."""
