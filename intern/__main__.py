"""`python -m intern`."""

from intern.frontends.cli import main

if __name__ == "__main__":
    main()
