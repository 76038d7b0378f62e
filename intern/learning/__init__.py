"""Learning: which topic a captured pair belongs to, and what its topic file holds afterwards."""
