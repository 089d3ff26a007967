"""What a worker is in its cluster, as it says to peers and expects of them. Owns the values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple


class Standing(NamedTuple):
    """The present registration, and the cluster uid under which it counts; 0 and empty as long as there is none."""

    incarnation: int = 0
    cluster_uid: bytes = b""


@dataclass(frozen=True, slots=True)
class Self:
    """This worker. `standing` is asked from any thread."""

    cluster: str
    node: str
    boot_id: bytes
    version: str
    standing: Callable[[], Standing]
