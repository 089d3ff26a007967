"""What the faces show: frozen answers, made from the machine's parts. Owns their shape; changes nothing."""

from dataclasses import dataclass

from blockyard.leader.core.events import WorkerInfo


@dataclass(frozen=True, slots=True)
class Holding:
    """A node holds the key in these tiers; `stale` while its link is down."""

    node: str
    incarnation: int
    tiers: int
    stale: bool


@dataclass(frozen=True, slots=True)
class EngineView:
    """An engine attached to a worker, as that worker says."""

    engine: str
    model: str
    state: str


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A registered worker. `since` is when its link last changed; byte sizes are None before a report."""

    node: str
    incarnation: int
    info: WorkerInfo
    state: str
    since: float
    keys: int
    applied_seq: int
    used_bytes: int | None
    pool_bytes: int | None
    engines: tuple[EngineView, ...]


@dataclass(frozen=True, slots=True)
class Degradation:
    """Something that makes answers less than whole, and since when."""

    what: str
    detail: str
    since: float
