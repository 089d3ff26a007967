"""Owns the worker's settings and the checks between them. It must never know how the worker uses them."""

from dataclasses import dataclass
from pathlib import Path

from blockyard.common.config.address import Address
from blockyard.common.config.disk import DiskSpec, DiskSpecs, Floor, FreeSpace
from blockyard.common.config.kinds import (
    OFF,
    Choice,
    Count,
    Duration,
    HostPort,
    HostPortOrOff,
    Mode,
    Size,
    SocketPath,
    Switch,
)
from blockyard.common.config.node import TIMING, NodeConfig
from blockyard.common.config.settings import Derived, SettingError, setting
from blockyard.common.config.units import GIB, KIB, MIB, TIB, format_duration, format_size

ENGINES = "Engines"
MEMORY = "Host pool"
DISK = "Disk"
PEERS = "Other workers"
LIMITS = "Limits"
FACES = "Faces"

_LEAST_SEGMENTS = 4
_SEGMENT_OVERHEAD = MIB
"""More than a segment's log, its headers and what a file system adds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerConfig(NodeConfig):
    """All that a worker is told at its start."""

    socket: Path = setting(
        SocketPath(),
        default=Path("/run/blockyard/worker.sock"),
        group=ENGINES,
        help="Unix socket that this node's engines attach to.",
    )
    socket_mode: int = setting(
        Mode(),
        default=0o600,
        group=ENGINES,
        help="Permissions of the socket. Who can open it can read and write the whole pool.",
    )
    host_pool: int = setting(
        Size(MIB, 64 * TIB), default=GIB, group=MEMORY, help="Host memory for chunks, taken once at start."
    )
    slab_size: int = setting(
        Size(MIB, 16 * GIB, power_of_two=True),
        default=32 * MIB,
        group=MEMORY,
        help="Piece of the pool that is given to one size of slot; no slot can be larger.",
    )
    min_slot: int = setting(
        Size(4 * KIB, GIB, multiple_of=4 * KIB),
        default=64 * KIB,
        group=MEMORY,
        help="Smallest slot of a chunk.",
    )
    prefault: bool = setting(
        Switch(), default=True, group=MEMORY, help="Touch the pool's pages in the background after the start."
    )
    policy: str = setting(
        Choice(("lru",)), default="lru", group=MEMORY, help="Which chunk makes room when the pool is full."
    )
    disk: tuple[DiskSpec, ...] = setting(
        DiskSpecs(),
        default=Derived(tuple, "no disk tier"),
        group=DISK,
        help="Directory for chunks that leave host memory, and how many bytes its files may take. Repeatable.",
    )
    disk_floor: Floor = setting(
        FreeSpace(), default=Floor(percent=5.0), group=DISK, help="What stays free of a directory's file system."
    )
    disk_segment: int = setting(
        Size(MIB, 16 * GIB, multiple_of=4 * KIB),
        default=128 * MIB,
        group=DISK,
        help="Size of a file in which chunks lie, and which is given back whole.",
    )
    disk_admission: str = setting(
        Choice(("always", "second-touch")),
        default="always",
        group=DISK,
        help="Which chunks are worth a write: all, or those that were used again.",
    )
    disk_write_rate: int = setting(
        Size(MIB, TIB), default=GIB, group=DISK, help="Bytes written a second, on average, over all directories."
    )
    disk_sync: float = setting(
        Duration(0.1, 3600),
        default=5.0,
        group=DISK,
        help="How often written chunks are made to survive a loss of power. A killed worker loses none either way.",
    )
    disk_patience: float = setting(
        Duration(0.1, 3600),
        default=5.0,
        group=DISK,
        help="How long an operation may take before its device counts as hung.",
    )
    disk_threads: int = setting(
        Count(2, 64), default=4, group=DISK, help="Threads for each directory; half of them are kept for loads."
    )
    peer_listen: Address = setting(
        HostPortOrOff(),
        default=OFF,
        group=PEERS,
        help="Where other workers read chunks from this one; without it this one reads none of theirs either.",
    )
    peer_advertise: Address | None = setting(
        HostPort(reachable=True),
        unset="as peer_listen",
        group=PEERS,
        help="The address other workers are told; needed where peer_listen is a wildcard. Port 0: that of peer_listen.",
    )
    max_pins_per_engine: int = setting(
        Count(1, 1_000_000),
        default=4096,
        group=LIMITS,
        help="Chunks that one engine may hold pinned at a time.",
    )
    max_fills_per_engine: int = setting(
        Count(1, 1_000_000),
        default=256,
        group=LIMITS,
        help="Chunks that one engine may be storing at a time.",
    )
    pin_ttl: float = setting(
        Duration(0.1, 3600), default=30.0, group=TIMING, help="How long a pin holds that nobody releases."
    )
    fill_deadline: float = setting(
        Duration(0.1, 3600), default=30.0, group=TIMING, help="How long the storing of a chunk may take."
    )
    delta_interval: float = setting(
        Duration(0.01, 10), default=0.1, group=TIMING, help="How often changes are told to the leader."
    )
    metrics_listen: Address = setting(
        HostPort(),
        default=Address("127.0.0.1", 0),
        group=FACES,
        help="Where /metrics and /healthz are served; the port taken is printed at start.",
    )

    def __post_init__(self) -> None:
        # Zero-argument super() does not work in a slotted dataclass, which is made anew.
        NodeConfig.__post_init__(self)
        pool, slab, slot = (format_size(size) for size in (self.host_pool, self.slab_size, self.min_slot))
        if self.slab_size > self.host_pool:
            raise SettingError("slab_size", slab, f"must not be larger than host_pool, {pool}")
        if self.min_slot > self.slab_size:
            raise SettingError("min_slot", slot, f"must not be larger than slab_size, {slab}")
        if self.host_pool % self.slab_size:
            below = self.host_pool // self.slab_size * self.slab_size
            nearest = f"{format_size(below)} or {format_size(below + self.slab_size)}"
            raise SettingError("host_pool", pool, f"must be a multiple of slab_size, {slab}; {nearest} would be")
        self._check_disk()
        self._check_peers()
        if self.delta_interval >= self.lease_ttl:
            shown = format_duration(self.delta_interval)
            raise SettingError(
                "delta_interval", shown, f"must be shorter than lease_ttl, {format_duration(self.lease_ttl)}"
            )

    def peer_advertised(self, bound_port: int) -> Address:
        """The address to tell other workers, once the port listened on is known."""
        address = self.peer_advertise or self.peer_listen
        return Address(address.host, address.port or bound_port)

    @property
    def serves_peers(self) -> bool:
        return self.peer_listen != OFF

    def _check_peers(self) -> None:
        if not self.serves_peers:
            if self.peer_advertise is not None:
                raise SettingError("peer_advertise", str(self.peer_advertise), "must be unset while peer_listen is off")
            return
        if not self.etcd:
            raise SettingError(
                "peer_listen", str(self.peer_listen), "must be off without etcd, where workers find each other"
            )
        if self.peer_advertise is None and self.peer_listen.is_wildcard:
            raise SettingError(
                "peer_advertise",
                None,
                f"must be set to HOST:PORT as other workers reach it, since peer_listen is {self.peer_listen}",
            )

    def _check_disk(self) -> None:
        if not self.disk:
            return
        segment, slab = format_size(self.disk_segment), format_size(self.slab_size)
        if self.disk_segment < self.slab_size + _SEGMENT_OVERHEAD:
            least = format_size(self.slab_size + _SEGMENT_OVERHEAD)
            raise SettingError(
                "disk_segment",
                segment,
                f"must hold the largest chunk, a slab of {slab}, and its header: at least {least}",
            )
        for spec in self.disk:
            if spec.capacity < _LEAST_SEGMENTS * (self.disk_segment + _SEGMENT_OVERHEAD):
                least = format_size(_LEAST_SEGMENTS * (self.disk_segment + _SEGMENT_OVERHEAD))
                raise SettingError(
                    "disk", str(spec), f"must hold {_LEAST_SEGMENTS} files of disk_segment, {segment}: at least {least}"
                )
