"""The places where people talk, one adapter each."""
