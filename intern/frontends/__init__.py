"""The command line and the status page."""
