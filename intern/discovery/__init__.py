"""Finding what is not indexed: files of the machine that intern runs on, as questions to itself, and their answers."""
