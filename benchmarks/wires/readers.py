"""Those who read: the worker's fetching threads, and bare sockets with as many threads."""

from __future__ import annotations

import queue
import socket
from concurrent.futures import ThreadPoolExecutor

import xxhash

from blockyard.worker.core.peers import wire
from blockyard.worker.core.peers.settings import PeerSettings
from blockyard.worker.peers.dialing import Dialer
from blockyard.worker.peers.fetching import FetchThreads
from blockyard.worker.pool import HostPool
from wires.chunks import CONNECTIONS, WORLD, Chunks
from wires.holder import REQUEST, me

_SECONDS = 60.0


class PeerReader:
    """As a worker reads, in questions as large as its core makes them; verification is a part of it."""

    def __init__(self, chunks: Chunks, pool: HostPool, port: int) -> None:
        self._chunks = chunks
        self._address = f"127.0.0.1:{port}"
        self._ended: queue.SimpleQueue[wire.PeerRead | wire.PeerFailed] = queue.SimpleQueue()
        self._threads = FetchThreads(Dialer(me("bench"), chunks.contexts()[1]), pool, self._ended.put, print, print)

    def read(self) -> None:
        size, batch = self._chunks.size, PeerSettings().max_batch
        batch = min(batch, self._chunks.count // CONNECTIONS)
        for start in range(0, self._chunks.count, batch):
            items = [
                wire.FetchItem(number, self._chunks.key(number), number, 1, number * size)
                for number in range(start, min(start + batch, self._chunks.count))
            ]
            order = wire.FetchChunks("bench", 1, self._address, WORLD, 0, size, 1, size, _SECONDS, items)
            self._threads.submit(order)
        for _ in range(self._chunks.count):
            event = self._ended.get(timeout=_SECONDS)
            if isinstance(event, wire.PeerFailed):
                raise RuntimeError(f"a chunk was not read: {event}")

    def close(self) -> None:
        self._threads.stop(_SECONDS)


class BareReader:
    """`recv_into` of what `sendall` sends, one chunk asked for at a time; hashed or not."""

    def __init__(self, chunks: Chunks, pool: HostPool, port: int, hashed: bool) -> None:
        self._hashed = hashed
        self._chunks = chunks
        self._pool = pool
        self._socks = [socket.create_connection(("127.0.0.1", port), _SECONDS) for _ in range(CONNECTIONS)]
        tls = chunks.contexts()[1]
        if tls is not None:
            self._socks = [tls.wrap_socket(sock) for sock in self._socks]
        for sock in self._socks:
            sock.settimeout(None)
        self._threads = ThreadPoolExecutor(CONNECTIONS)

    def read(self) -> None:
        list(self._threads.map(self._read_share, range(CONNECTIONS)))

    def close(self) -> None:
        for sock in self._socks:
            sock.close()
        self._threads.shutdown()

    def _read_share(self, which: int) -> None:
        sock, size = self._socks[which], self._chunks.size
        for number in range(which, self._chunks.count, CONNECTIONS):
            offset = number * size
            sock.sendall(REQUEST.pack(offset, size))
            with self._pool.memory.view[offset : offset + size] as view:
                got = 0
                while got < size:
                    got += sock.recv_into(view[got:])
                if self._hashed:
                    xxhash.xxh3_64_intdigest(view)
