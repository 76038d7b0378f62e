"""Files of this machine that are not indexed yet."""
