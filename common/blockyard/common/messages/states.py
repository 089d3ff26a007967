"""What the answer for one key can be: a hit, or the reason why not.

Owns the codes that travel as one byte per key and that metrics label as `reason`.
"""

from enum import IntEnum


class Labelled(IntEnum):
    """Codes that have a name in words."""

    @property
    def label(self) -> str:
        """As metrics and logs write it, e.g. `never-stored`."""
        return self.name.lower().replace("_", "-")


class KeyState(Labelled):
    """State of one asked key. Everything but HIT is a miss reason."""

    HIT = 0
    NEVER_STORED = 1
    EVICTED_HOST = 2
    EVICTED_DISK = 3
    NOT_ADMITTED = 4
    BEING_FILLED = 5
    INCOMPLETE_SHARDS = 6
    FINGERPRINT = 7
    SLOWER_THAN_COMPUTE = 8
    DEADLINE = 9
    PIN_BUDGET = 10
    PEER_GONE = 11
    LEADER_UNKNOWN = 12
    CORRUPT = 13
    DISABLED = 14


class CopyState(Labelled):
    """Place of one key in a rank's transfer job, as the worker resolves it or the rank reports it."""

    OK = 0
    DUPLICATE = 1
    NO_ROOM = 2
    UNKNOWN_JOB = 3
    STALE = 4
    CORRUPT = 5
    DEADLINE = 6
    CANCELLED = 7
    COPY_ERROR = 8
    DETACHED = 9
