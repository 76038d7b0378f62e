"""Pure functions over text: nothing here reads a clock, a disk or a network."""
