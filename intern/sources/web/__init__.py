"""Pages that the operator lists, fetched politely and from public addresses only."""
