"""Files, web pages and discovered files: list, describe, keep searchable."""
