"""The status page, metrics and health over HTTP."""
