"""What others can see of intern from outside: logs, and the clock that dates them."""
