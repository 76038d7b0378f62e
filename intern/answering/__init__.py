"""Answers: from a conversation to a reply worth posting, or to silence with its reason."""
