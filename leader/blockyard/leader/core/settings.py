"""The machine's limits and waits, each with its rule for when it is reached. Owns no behaviour."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LeaderSettings:
    """Times in seconds."""

    cluster: str
    version: str

    max_workers: int = 1024
    """Members, and links of members and of those that wait. A further link is refused as busy, a further
    registration is ignored until a member leaves."""

    registration_wait: float = 3.0
    """A hello may overtake etcd's watch; a link whose registration has not shown by then is refused.

    Less than the 5 s that a worker waits for a welcome: one that gives up first never hears why.
    """

    claim_grace: float = 60.0
    """How long a registered worker without a link keeps its claims; then its keys count as unknown."""

    resync_patience: float = 5.0
    """A resync that brought nothing for so long is asked for again, as a snapshot."""

    snapshots_at_once: int = 8
    """Workers that may send a snapshot at a time; others wait for their turn."""

    snapshot_window: int = 8
    """Parts of a snapshot that may be on their way: what a worker has to buffer for a leader that is slow."""

    digest_interval: float = 10.0
    """How often a worker's latest digests are compared with the index, as long as they describe what is applied."""

    max_keys_per_worker: int = 20_000_000
    """A worker that claims more is cut off: it would take the memory of the others' claims."""

    sweep_keys: int = 20_000
    """Keys looked at per Tick to drop placements of retired holders."""

    journal_changes: int = 50_000
    """Changes remembered for `story`; the oldest go first."""
