"""Documents as blocks: what each format's own parser finds, in one model for all that shows, searches or checks it."""
