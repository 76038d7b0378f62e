"""From a conversation to an answer with sources, or to silence with a reason."""
