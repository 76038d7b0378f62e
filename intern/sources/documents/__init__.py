"""The readable text of documents."""
