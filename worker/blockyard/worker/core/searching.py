"""Where a run's chunks are looked for that are not in host memory: on this worker's disk, then at its peers.

Owns the order of the search and how far it goes: of a prefix run only what follows without a gap is of use.
"""

from collections.abc import Iterable

from blockyard.common.identity import Key
from blockyard.worker.core.chunks import ChunkState
from blockyard.worker.core.disk.promoting import Promoting
from blockyard.worker.core.holdings import Holdings
from blockyard.worker.core.peers.tier import PeerTier
from blockyard.worker.core.slots import SizeClass


class Searching:
    """`start_run` begins what a run lacks and a lower tier has."""

    def __init__(self, holdings: Holdings, promoting: Promoting, peers: PeerTier) -> None:
        self._holdings = holdings
        self._promoting = promoting
        self._peers = peers

    def start_run(
        self, keys: list[Key], parent: Key, size_class: SizeClass, prefix: bool, now: float, may_ask: bool
    ) -> set[int]:
        """The reads, begun now or before, that would make more of these keys a hit; a question counts as one.

        `may_ask`: the leader was not yet asked for this. Of a prefix run nothing is begun behind a key that it is asked
        for, as nothing behind it may be of use.
        """
        if not size_class.on_disk and not self._peers.active:
            return set()
        may_ask = may_ask and self._peers.may_ask
        reads: set[int] = set()
        unknown: list[Key] = []
        for at, key in enumerate(keys):
            chunk = self._holdings.index.get(key)
            if chunk is None:
                read = self._start(key, parent, size_class, now, may_ask)
            elif chunk.state is ChunkState.READY:
                parent = key
                continue
            else:
                read = chunk.read
            parent = key
            if read:
                reads.add(read)
            elif read is None:
                unknown.append(key)
                if prefix:
                    unknown += self._unknown_behind(keys[at + 1 :], size_class, now)
                    break
            elif prefix:
                break
        self._peers.send(now)
        if unknown:
            reads.add(self._peers.ask(unknown, prefix, now))
        return reads

    def _start(self, key: Key, parent: Key, size_class: SizeClass, now: float, may_ask: bool) -> int | None:
        """The number of a new read; 0 when there is none to begin, None when the leader is to be asked."""
        copy = size_class.on_disk.get(key)
        read = 0 if copy is None else self._promoting.start(copy, now)
        if read or not self._peers.active:
            return read
        if copy is not None and copy.segment.directory.breaker.closed:
            return 0  # the disk has it, and too much to do
        nodes = self._peers.holders_of(key, now, may_ask)
        if nodes:
            return self._peers.fetch(key, parent, size_class, nodes, now)
        if nodes is None and may_ask:
            return None
        if nodes is None:
            self._peers.unknown(key, now)
        return 0

    def _unknown_behind(self, keys: Iterable[Key], size_class: SizeClass, now: float) -> list[Key]:
        """Which of these the leader has to be asked for too, up to one that is known to be nowhere."""
        unknown: list[Key] = []
        for key in keys:
            chunk = self._holdings.index.get(key)
            if chunk is not None and chunk.state is not ChunkState.READY and not chunk.read:
                break
            if chunk is not None or key in size_class.on_disk:
                continue
            nodes = self._peers.holders_of(key, now, may_ask=True)
            if nodes is None:
                unknown.append(key)
            elif not nodes:
                break
        return unknown
