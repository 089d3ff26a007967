"""What `peers.py` measures: one side that holds chunks, in a process of its own, and those who read them."""
