"""A Discord bot for community support that learns from the team's answers."""

__version__ = "0.1.0"
