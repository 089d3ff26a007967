"""The worker's pure core: events in, instructions out; no clock, no I/O, no threads, no randomness.

events        what can happen to a worker, as the shell tells it
instructions  what the shell has to do, in order
settings      the limits that the core works within
worker        the machine: handle(now, event) -> instructions; hands each event to the part that acts on it
holdings      the chunks and all that moves with one: key index, slots, eviction order, ghosts, story
chunks        a chunk and the table of what may happen to it
room          what makes way when a slot is needed
slots         the pool's arithmetic: slabs, size classes, free slots, generations
policies      which chunk goes first when a slot is needed
pins          grants and copiers: why a slot may not be reused
fills         store jobs and those who wait for one
pinning       grants, step by step
reservations  slots for what is about to be stored, until it is whole or given up
searching     where else a run is looked for: on disk, at peers
disk          the disk tier
peers         chunks fetched from other workers, and served to them
breaker       when a device or a peer is left alone, and when it is tried again
transfers     copies of ranks, from their places to their end
lookups       what the keys of a run find
worlds        what the engines of one fingerprint have in common
sessions      engines and their sessions
attachments   sessions coming and going, step by step
admission     whether a new session may come in
hints         what requests say of themselves
orders        what the leader orders, and what came of it
outbox        what the leader is told: numbered deltas, snapshots
gauges        its state in numbers
invariants    what must hold after every event
"""
