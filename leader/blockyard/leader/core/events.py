"""What can happen to a leader. Values only; owns no rule."""

from dataclasses import dataclass

from blockyard.common.fencing import Epoch
from blockyard.common.messages.cluster import FromWorker, WorkerHello


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """What a worker's registration says of it. `peer` is where it serves other workers ("" if it does not)."""

    boot_id: str = ""
    version: str = ""
    metrics: str = ""
    pool_bytes: int = 0
    peer: str = ""


@dataclass(frozen=True, slots=True)
class WorkerRegistered:
    """etcd has this registration; `incarnation` is its create-revision."""

    node: str
    incarnation: int
    info: WorkerInfo = WorkerInfo()


@dataclass(frozen=True, slots=True)
class WorkerUnregistered:
    """The registration of this incarnation is gone from etcd."""

    node: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class WorkersListed:
    """All registrations as they stand; whoever is not among them is gone."""

    workers: tuple[WorkerRegistered, ...]


@dataclass(frozen=True, slots=True)
class LinkOpened:
    """A link sent its hello. `link` is the shell's number for it, never used twice."""

    link: int
    hello: WorkerHello


@dataclass(frozen=True, slots=True)
class Received:
    """A later message of that link."""

    link: int
    message: FromWorker


@dataclass(frozen=True, slots=True)
class LinkClosed:
    """The link is gone, whoever ended it."""

    link: int


@dataclass(frozen=True, slots=True)
class BecameLeader:
    """This process holds the election key, with this epoch."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class LostLeadership:
    """The key is gone, or may be gone by this process's own clock."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; wanted about every 100 ms."""


Event = (
    Received
    | LinkOpened
    | LinkClosed
    | WorkerRegistered
    | WorkerUnregistered
    | WorkersListed
    | BecameLeader
    | LostLeadership
    | Tick
)
