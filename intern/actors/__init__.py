"""The actors, one file each, and the pipeline that wires them."""
