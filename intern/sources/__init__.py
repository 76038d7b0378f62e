"""Files, web pages and discovered files: listed, described, and kept searchable."""
