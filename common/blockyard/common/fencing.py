"""Who may still speak: cluster uid, epochs and incarnations.

Owns the comparison of fences; must never know transport or etcd. Epoch and incarnation are etcd create-revisions, so
they grow without a clock, within one cluster uid and one history of etcd: a wiped etcd gets a new uid, while one that
was restored from a backup keeps its uid and goes back in its revisions.
"""

from dataclasses import dataclass

UID_BYTES = 16


def parse_uid(text: bytes) -> bytes:
    """The cluster uid as etcd has it, in hex; ValueError if it is none."""
    try:
        uid = bytes.fromhex(text.decode("ascii"))
    except ValueError:
        uid = b""
    if len(uid) != UID_BYTES:
        raise ValueError(f"the cluster uid is {text!r}; right: {2 * UID_BYTES} hex digits")
    return uid


@dataclass(frozen=True, slots=True)
class Epoch:
    """A leader's term: (cluster uid, create-revision of the election key)."""

    cluster_uid: bytes
    number: int


@dataclass(slots=True)
class EpochFence:
    """Highest epoch seen, and in which history. `admit` says whether an order of that epoch may be obeyed."""

    highest: Epoch | None = None
    history: int = 0

    def admit(self, epoch: Epoch, history: int = 0) -> bool:
        """Accept an epoch not below the highest seen within its uid; a new uid or history always resets.

        `history` counts how often the caller saw etcd's revisions go back. It has read the election key first, so a
        new uid comes from etcd and not from an old leader.
        """
        comparable = self.highest is not None and self.highest.cluster_uid == epoch.cluster_uid
        if comparable and self.history == history and self.highest is not None and epoch.number < self.highest.number:
            return False
        self.highest, self.history = epoch, history
        return True
