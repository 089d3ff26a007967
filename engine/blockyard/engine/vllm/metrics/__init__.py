"""Blockyard's numbers in vLLM's own `/metrics`.

vLLM carries them there: each step it takes what the ranks and the scheduler have counted, adds it up, and hands it to
the process that answers scrapes. The series of the connector that ours is derived from are not shown: a failed load is
one of 0 bytes to them, a lookup does not include the wait for the worker, and failures to allocate never come.
"""
