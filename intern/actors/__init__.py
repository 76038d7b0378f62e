"""Who works in intern, each a loop with a reason to run by itself. `office` wires them; nothing else connects them."""
