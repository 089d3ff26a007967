"""Who may still speak: cluster uid, epochs and incarnations.

Owns the comparison of fences; must never know transport or etcd. Epoch and incarnation are etcd create-revisions, so
they grow without a clock, within one cluster uid; a new uid (etcd wiped or restored) resets them.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Epoch:
    """A leader's term: (cluster uid, create-revision of the election key)."""

    cluster_uid: bytes
    number: int


@dataclass(slots=True)
class EpochFence:
    """Highest epoch seen. `admit` says whether an order of that epoch may be obeyed."""

    highest: Epoch | None = None

    def admit(self, epoch: Epoch) -> bool:
        """Accept an epoch not below the highest seen within its uid; a new uid always resets.

        The caller has read the election key first, so a new uid comes from etcd and not from an old leader.
        """
        same_uid = self.highest is not None and self.highest.cluster_uid == epoch.cluster_uid
        if same_uid and self.highest is not None and epoch.number < self.highest.number:
            return False
        self.highest = epoch
        return True
