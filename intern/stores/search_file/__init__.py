"""The file of the search: words and vectors, made anew from the database."""
