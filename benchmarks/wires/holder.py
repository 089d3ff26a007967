"""The side that holds chunks: the worker's peer server with a core that knows every key, and a bare one beside it.

Owns its process. It says its ports, then tells its CPU time whenever it is asked.
"""

from __future__ import annotations

import contextlib
import multiprocessing.connection
import os
import resource
import socket
import ssl
import struct
import threading

from blockyard.common.config import Address
from blockyard.common.messages.peer import FetchState
from blockyard.worker.core.peers import wire
from blockyard.worker.peers.server import PeerServer, Reports, bind
from blockyard.worker.peers.standing import Self, Standing
from blockyard.worker.pool import HostPool
from wires.chunks import Chunks

REQUEST = struct.Struct("<QQ")
"""Of the bare server: offset and size."""


def hold(chunks: Chunks, pipe: multiprocessing.connection.Connection) -> None:
    """Run until the pipe ends."""
    with chunks.pool() as pool:
        pool.memory.map[:] = os.urandom(1 << 20) * (chunks.total_bytes >> 20)
        sums = [pool.checksums(number * chunks.size, 1, chunks.size, chunks.size) for number in range(chunks.count)]
        server, port = _peer_server(chunks, pool, sums)
        bare = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=_accept, args=(bare, pool, chunks.contexts()[0]), daemon=True).start()
        pipe.send((port, bare.getsockname()[1]))
        with contextlib.suppress(EOFError):
            while pipe.recv():
                pipe.send(cpu_seconds())
        server.stop(5.0)
        os._exit(0)


def cpu_seconds() -> float:
    """Of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def me(node: str) -> Self:
    return Self("bench", node, b"b" * 16, "bench", lambda: Standing(1, b""))


def _peer_server(chunks: Chunks, pool: HostPool, sums: list[tuple[int, ...]]) -> tuple[PeerServer, int]:
    def answer(event: wire.PeerEvent) -> None:
        if isinstance(event, wire.PeerAsked):
            numbers = [int.from_bytes(key, "big") for key in event.keys]
            items = [wire.ServeItem(0, 1, number * chunks.size, sums[number]) for number in numbers]
            states = [FetchState.OK] * len(items)
            server.serve(wire.ServeChunks(event.session, event.number, states, chunks.size, chunks.size, items))

    def ignore(*_: object) -> None:
        pass

    sock = bind(Address("127.0.0.1", 0))
    reports = Reports(answer, print, print, ignore, lambda: print("cut"))
    server = PeerServer(sock, me("bench"), chunks.contexts()[0], pool, reports)
    server.start()
    return server, int(sock.getsockname()[1])


def _accept(bare: socket.socket, pool: HostPool, tls: ssl.SSLContext | None) -> None:
    while True:
        sock, _ = bare.accept()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=_send, args=(sock, pool, tls), daemon=True).start()


def _send(plain: socket.socket, pool: HostPool, tls: ssl.SSLContext | None) -> None:
    sock = plain if tls is None else tls.wrap_socket(plain, server_side=True)
    while request := sock.recv(REQUEST.size):
        offset, size = REQUEST.unpack(request)
        sock.sendall(pool.memory.view[offset : offset + size])
