"""Documents as blocks: one model for all formats, each read by its own parser, for display, search and checks."""
