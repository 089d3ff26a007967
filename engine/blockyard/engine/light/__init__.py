"""A small engine without vLLM: torch tensors for GPU blocks, known bytes for what a model would compute.

world     what an engine's chunks contain, so that anyone can say whether they came back right
engine    compute, store, lose, load, through the same clients that vLLM uses
stalling  a copier that stops in the middle of a store, to be killed there
process   one engine as a process that obeys commands
"""
