"""The actors, and the pipeline that wires them. `upkeep.py` has those that only wait for a time or a wake-up."""
