"""What the lease machine and its shell tell each other. Owns the vocabulary; must never know how etcd is asked.

An instruction without a deadline of its own has the client's.
"""

from __future__ import annotations

from dataclasses import dataclass

from blockyard.common.etcd.errors import EtcdError
from blockyard.common.etcd.key_state import KeyState
from blockyard.common.etcd.values import KeyValue
from blockyard.common.etcd.watch import WatchEvent

# Instructions. All but Report are answered by exactly one event.


@dataclass(frozen=True, slots=True)
class Report:
    """Tell the owner of the key its new state, before anything later in the list is done."""

    state: KeyState


@dataclass(frozen=True, slots=True)
class Get:
    """Read the key. Answer: Found."""

    timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class Remove:
    """Delete the key unless it was changed after this revision. Answer: Done."""

    mod_revision: int


@dataclass(frozen=True, slots=True)
class Grant:
    """Ask for a lease. Answer: Granted."""

    ttl_s: int


@dataclass(frozen=True, slots=True)
class Create:
    """Make the key under a lease unless it exists. Answer: Made."""

    value: bytes
    lease: int


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """Renew a lease. Answer: Granted."""

    lease: int
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Put:
    """Write the key if it is still of this create-revision. Answer: Wrote."""

    create_revision: int
    value: bytes
    lease: int
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Revoke:
    """Give a lease back, and all keys under it. Answer: Done."""

    lease: int
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Sleep:
    """Answer: Woke."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Rest:
    """Sleep, but only until the key's value has changed. Answer: Woke."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Watch:
    """Hear what a watch of the key says next: a new one if `afresh`, whose first word is a Resync, else the one that
    was begun. Any other instruction ends it. Answer: its next event, or Woke when the time is over.
    """

    seconds: float
    afresh: bool = False


Request = Get | Remove | Grant | Create | KeepAlive | Put | Revoke
"""What is asked of etcd."""

Wanted = Request | Sleep | Rest | Watch
Instruction = Report | Wanted


# Events.


@dataclass(frozen=True, slots=True)
class Found:
    """The key as it stands; None if it is not there."""

    entry: KeyValue | None


@dataclass(frozen=True, slots=True)
class Granted:
    """A lease of ours runs, for so long from when it was asked for at the earliest."""

    lease: int
    ttl_s: int


@dataclass(frozen=True, slots=True)
class Made:
    """Whether the key was made by us, and how it stands now."""

    by_us: bool
    entry: KeyValue


@dataclass(frozen=True, slots=True)
class Wrote:
    """Whether the key was still ours to write."""

    done: bool


@dataclass(frozen=True, slots=True)
class Done:
    pass


@dataclass(frozen=True, slots=True)
class Failed:
    """What was asked may or may not have happened."""

    error: EtcdError


@dataclass(frozen=True, slots=True)
class Woke:
    """Time has passed. It also sets the machine going."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """Give the key up: what is answered is carried out, and nothing follows."""


Event = Found | Granted | Made | Wrote | Done | Failed | Woke | Stopped | WatchEvent
