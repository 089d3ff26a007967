"""A stretch of wire on the way to a worker's peer port, and something that happens once in the middle of a transfer.

Owns the bytes on their way; what the worker sends passes here, and an act is done when so many have passed.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

from support.closing import Closing

_PIECE = 64 << 10


class Tap(Closing):
    """`address` is for the worker to tell others; `lead_to` says where it really is."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.passed = 0
        self.acted = threading.Event()
        self._act: Callable[[], None] | None = None
        self._after = 0
        self._port = 0
        self._ends: list[socket.socket] = []
        self._acceptor = threading.Thread(target=self._accept, daemon=True)
        self._acceptor.start()

    def lead_to(self, port: int) -> None:
        self._port = port

    def after(self, size: int, act: Callable[[], None]) -> None:
        """Do this once so many bytes more have come from the worker."""
        self._after, self._act = self.passed + size, act

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._acceptor.join()
        for end in self._ends:
            _shut(end)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                self._ends.append(near)
                try:
                    far = socket.create_connection(("127.0.0.1", self._port))
                except OSError:
                    _shut(near)
                    continue
                self._ends.append(far)
                for source, target, counts in ((near, far, False), (far, near, True)):
                    threading.Thread(target=self._pass_on, args=(source, target, counts), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, counts: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_PIECE):
                if counts:
                    self._count(len(data))
                target.sendall(data)
        _shut(source)
        _shut(target)

    def _count(self, size: int) -> None:
        self.passed += size
        if self._act is not None and self.passed >= self._after:
            act, self._act = self._act, None
            act()
            self.acted.set()


def _shut(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
