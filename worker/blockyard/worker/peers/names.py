"""Host names of peers. Owns looking them up, which the C library does for as long as it likes: a thread of its own for
each name that does not come back holds up nobody, and there are only so many of these.
"""

from __future__ import annotations

import ipaddress
import queue
import socket
import threading
import time

from blockyard.common.config import Address

_MOST = 8
_KEPT_SECONDS = 60.0
_MOST_KEPT = 1024


class Names:
    """Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._looking = 0
        self._known: dict[str, tuple[str, float]] = {}

    def ip_of(self, address: Address, deadline: float) -> str:
        """An IP address of this host; OSError if it has none that is known in time."""
        try:
            return str(ipaddress.ip_address(address.host))
        except ValueError:
            pass
        with self._lock:
            ip, until = self._known.get(address.host, ("", 0.0))
            if until > time.monotonic():
                return ip
            if self._looking >= _MOST:
                raise OSError("too many host names are being looked up")
            self._looking += 1
        found: queue.SimpleQueue[str | OSError] = queue.SimpleQueue()
        try:
            threading.Thread(target=self._look_up, args=(address.host, found), name="peer-name", daemon=True).start()
        except RuntimeError as error:
            self._looked_up()
            raise OSError(f"{address.host} cannot be looked up: {error}") from error
        try:
            answer = found.get(timeout=max(0.001, deadline - time.monotonic()))
        except queue.Empty:
            raise TimeoutError(f"{address.host} is not found in time") from None
        if isinstance(answer, OSError):
            raise answer
        return answer

    def _look_up(self, host: str, found: queue.SimpleQueue[str | OSError]) -> None:
        try:
            ip = str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
        except (OSError, UnicodeError) as error:
            found.put(OSError(f"{host}: {error}"))
        else:
            with self._lock:
                if len(self._known) >= _MOST_KEPT:
                    self._known.clear()
                self._known[host] = (ip, time.monotonic() + _KEPT_SECONDS)
            found.put(ip)
        finally:
            self._looked_up()

    def _looked_up(self) -> None:
        with self._lock:
            self._looking -= 1
