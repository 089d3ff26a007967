"""The leader as a pure state machine: who is a member, who holds what, who may still speak.

events        what can happen to a leader
instructions  what the machine asks its shell to do
settings      its limits and waits
membership    workers by registration, their links, and links that wait for a registration
overflow      registrations beyond the members that are taken in
ownership     the index: key -> who holds it in which tiers
kinds         what chunks can be: world and group, as a small number
matching      longest prefix of a run of keys, per worker and tier
locating      who else holds some keys, in spans
neighbours    which workers know which others as peers
requests      what people may ask, and what they are told
orders        the book of orders: numbers, deadlines, outcomes
prefetching   which orders bring keys into one worker's memory
purges        what was purged and may still be claimed
drains        moving off a worker what no other has
takers        which workers can take that over
direction     the parts that give orders, together
rebuild       one worker's numbered claims: deltas, gaps, snapshots swapped in whole
journal       the latest claims, so that one key's life can be told
views         what the faces show of all this
leader        the machine; the only file that changes state across the parts
invariants    what must hold after each event
"""
