"""The limits a worker core works within. Owns the numbers and what they imply; must never read them from
anywhere.
"""

import msgspec

from blockyard.common.slot_table import PAGE
from blockyard.worker.core.disk.settings import DiskSettings
from blockyard.worker.core.peers.settings import PeerSettings


class CoreSettings(msgspec.Struct, frozen=True):
    """Sizes in bytes, times in seconds."""

    node: str
    boot_id: bytes
    version: str
    pool_bytes: int
    slab_bytes: int
    min_slot: int
    pin_ttl: float = 30.0
    fill_deadline: float = 30.0
    ranks_deadline: float = 5.0
    max_sessions: int = 256
    max_worlds: int = 256
    max_pins_per_engine: int = 65536
    max_fills_per_engine: int = 8192
    max_jobs_per_engine: int = 1024
    max_copies_per_session: int = 1024
    max_hints_per_session: int = 8192
    max_parked: int = 256
    max_ghosts: int = 65536
    max_story: int = 4096
    outbox_changes: int = 65536
    outbox_deltas: int = 64
    snapshot_parts_per_tick: int = 8
    snapshot_part_keys: int = 2048
    digest_interval: float = 10.0
    delta_interval: float = 0.1
    stats_interval: float = 1.0
    disk: DiskSettings = DiskSettings()
    peers: PeerSettings = PeerSettings()

    def __post_init__(self) -> None:
        if self.min_slot <= 0 or self.min_slot % PAGE:
            raise ValueError(f"min_slot is {self.min_slot}, must be a positive multiple of {PAGE}")
        if self.slab_bytes < self.min_slot or self.slab_bytes % PAGE:
            raise ValueError(
                f"slab_bytes is {self.slab_bytes}, must be a multiple of {PAGE} and at least {self.min_slot}"
            )
        if self.pool_bytes < self.slab_bytes:
            raise ValueError(f"pool_bytes is {self.pool_bytes}, must hold a slab of {self.slab_bytes}")

    @property
    def slabs(self) -> int:
        return self.pool_bytes // self.slab_bytes

    @property
    def slots_per_slab(self) -> int:
        """Slot numbers set aside for each slab; a slab of large slots leaves some unused."""
        return self.slab_bytes // self.min_slot

    @property
    def table_slots(self) -> int:
        """Slots that the slot table must have room for."""
        return self.slabs * self.slots_per_slab
