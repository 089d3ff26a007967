"""The leader as a pure state machine: who is a member, who holds what, who may still speak.

events        what can happen to a leader
instructions  what the machine asks its shell to do
settings      its limits and waits
membership    workers by registration, their links, and links that wait for a registration
overflow      registrations beyond the members that are taken in
ownership     the index: key -> who holds it in which tiers
kinds         what chunks can be: world and group, as a small number
matching      longest prefix of a run of keys, per worker and tier
rebuild       one worker's numbered claims: deltas, gaps, snapshots swapped in whole
journal       the latest claims, so that one key's life can be told
views         what the faces show of all this
leader        the machine; the only file that changes state across the parts
invariants    what must hold after each event
"""
