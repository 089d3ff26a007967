"""What etcd says of who leads. Owns the meaning of the election key and of each event about it; never reads etcd.

The simulator's workers run this as it is.
"""

import json
from dataclasses import dataclass

from blockyard.common.config import Address, parse_address
from blockyard.common.etcd.errors import EtcdRefused
from blockyard.common.etcd.history import HistoryCounter
from blockyard.common.etcd.values import KeyValue
from blockyard.common.etcd.watch import KeyDeleted, KeyPut, Resync, WatchEvent
from blockyard.common.fencing import Epoch, parse_uid


@dataclass(frozen=True, slots=True)
class LeaderAddress:
    """A leader's claim: its term, its name (which its certificate must carry) and where it listens.

    `history` counts how often etcd was seen to go back, as it does when it is restored from a backup.
    """

    epoch: Epoch
    node: str
    address: Address
    history: int = 0


class ElectionKey:
    """Fed with all that watches of the key bring, also across watches."""

    def __init__(self) -> None:
        self._seen = HistoryCounter()

    def heard(self, event: WatchEvent) -> KeyValue | None:
        """The entry as it stands, to be read together with the cluster uid.

        None while there is no leader; the link, if it stands, does no harm.
        """
        match event:
            case Resync(listing=listing):
                self._seen.resync(event)
                return listing.first
            case KeyPut(kv=entry):
                self._seen.put(entry)
                return entry
            case KeyDeleted():
                return None

    def leader(self, entry: KeyValue, uid: KeyValue | None) -> LeaderAddress:
        """ValueError for an entry or a uid that no leader of this version would write."""
        if uid is None:
            raise EtcdRefused(f"the cluster uid is missing in etcd, though {entry.key} is there")
        epoch = Epoch(parse_uid(uid.value), entry.create_revision)
        try:
            content = json.loads(entry.value)
            node, link = content["node"], content["link"]
        except (KeyError, TypeError) as error:
            raise ValueError(f"{entry.value!r} has no node or no link") from error
        if not isinstance(node, str) or not isinstance(link, str):
            raise ValueError(f"node is {node!r} and link is {link!r}; right: a name and host:port")
        return LeaderAddress(epoch, node, parse_address(link), self._seen.history)
