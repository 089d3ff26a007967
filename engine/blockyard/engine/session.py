"""One connection to the worker: connect, handshake, hang-up. Blocking, every step within a deadline.

Owns the socket until it is handed to a client, and the passing of descriptors: the engine's pidfd out, the
pool's and the table's memfds in. Must never know what a session is used for.
"""

import os
import select
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from blockyard.common.codec import PREFIX_BYTES, Decoder, FrameRefused, encode, frame_size
from blockyard.common.link import BlockingLink
from blockyard.common.messages.attach import (
    MAX_FRAME,
    PROTOCOL_MAX,
    PROTOCOL_MIN,
    Closing,
    Hello,
    Refused,
    ToEngine,
    Welcome,
)
from blockyard.engine.detached import NO_WORKER, REFUSED, TIMEOUT, VERSION, Detached, Reason, of_refusal

HANDSHAKE_SECONDS = {"rank": 3.0, "scheduler": 6.0}
"""The worker answers a scheduler only when all its ranks are attached, for which it gives them 5 s."""

_SEND_BUFFER = 1 << 20
_MEMORY_DESCRIPTORS = 2
_HANG_UP = select.POLLRDHUP | select.POLLHUP | select.POLLERR


@dataclass(frozen=True, slots=True)
class Session:
    """An accepted session. `memory` holds the pool's and the table's descriptors, for a rank only."""

    welcome: Welcome
    link: BlockingLink[ToEngine]
    memory: tuple[int, ...]

    def discard(self) -> None:
        """Close what nobody has taken over."""
        self.link.close()
        _close_all(self.memory)


def open_session(socket_path: str | Path, hello: Hello) -> Session:
    """Connect and attach; raises Detached with the reason, leaving nothing open."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    deadline = time.monotonic() + HANDSHAKE_SECONDS[hello.role]
    try:
        sock.settimeout(HANDSHAKE_SECONDS[hello.role])
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        sock.connect(os.fspath(socket_path))
        _send_hello(sock, hello)
        payload, descriptors = _receive_first(sock, deadline)
    except TimeoutError:
        sock.close()
        raise Detached(Reason(TIMEOUT, f"no answer to the handshake at {socket_path}")) from None
    except OSError as error:
        sock.close()
        raise Detached(Reason(NO_WORKER, f"cannot reach a worker at {socket_path}: {error}")) from None
    except FrameRefused as error:
        sock.close()
        raise Detached(Reason(REFUSED, f"worker at {socket_path} answers with no valid frame: {error}")) from None
    try:
        welcome = _accept(payload, hello, descriptors)
    except Detached:
        sock.close()
        _close_all(descriptors)
        raise
    return Session(welcome, BlockingLink(sock, Decoder(ToEngine), MAX_FRAME), tuple(descriptors))


def hung_up(descriptor: int) -> bool:
    """Whether the peer of a socket is gone; reads nothing, never waits."""
    return wait_for_hang_up(descriptor, (), 0.0)


def wait_for_hang_up(descriptor: int, wakers: Sequence[int], timeout: float) -> bool:
    """Wait until the peer is gone (True), one of `wakers` is readable, or `timeout` seconds have passed."""
    poll = select.poll()
    poll.register(descriptor, _HANG_UP)
    for waker in wakers:
        poll.register(waker, select.POLLIN)
    return any(ready == descriptor for ready, _ in poll.poll(timeout * 1000))


def _send_hello(sock: socket.socket, hello: Hello) -> None:
    """The first frame carries a pidfd of this process, by which the worker learns of its death."""
    frame = encode(hello, MAX_FRAME)
    own = os.pidfd_open(os.getpid())
    try:
        sent = socket.send_fds(sock, [frame], [own])
    finally:
        os.close(own)
    if sent < len(frame):
        sock.sendall(frame[sent:])


def _receive_first(sock: socket.socket, deadline: float) -> tuple[bytes, list[int]]:
    """The first frame's payload with the descriptors that came along; closes them if it is cut short."""
    descriptors: list[int] = []
    try:
        prefix = _receive_exactly(sock, PREFIX_BYTES, deadline, descriptors)
        return _receive_exactly(sock, frame_size(prefix, MAX_FRAME), deadline, descriptors), descriptors
    except BaseException:
        _close_all(descriptors)
        raise


def _receive_exactly(sock: socket.socket, size: int, deadline: float, descriptors: list[int]) -> bytes:
    data = bytearray()
    while len(data) < size:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        sock.settimeout(left)
        part, received, _, _ = socket.recv_fds(
            sock, size - len(data), _MEMORY_DESCRIPTORS, flags=socket.MSG_CMSG_CLOEXEC
        )
        descriptors += received
        if not part:
            raise ConnectionResetError("closed during the handshake")
        data += part
    return bytes(data)


def _accept(payload: bytes, hello: Hello, descriptors: list[int]) -> Welcome:
    """The Welcome, or Detached when the answer is anything else."""
    try:
        answer: ToEngine = Decoder[ToEngine](ToEngine).decode(payload)
    except FrameRefused as error:
        raise Detached(Reason(REFUSED, f"worker's first message is not valid: {error}")) from None
    if isinstance(answer, Refused):
        raise Detached(of_refusal(answer.code, answer.detail))
    if isinstance(answer, Closing):
        raise Detached(Reason(NO_WORKER, f"worker is closing: {answer.reason}"))
    if not isinstance(answer, Welcome):
        raise Detached(Reason(REFUSED, f"worker's first message is a {type(answer).__name__}"))
    if not PROTOCOL_MIN <= answer.protocol <= PROTOCOL_MAX:
        raise Detached(Reason(VERSION, f"worker chose protocol {answer.protocol}, not one that was offered"))
    wanted = _MEMORY_DESCRIPTORS if hello.role == "rank" else 0
    if len(descriptors) != wanted:
        raise Detached(Reason(REFUSED, f"worker passed {len(descriptors)} descriptors, expected {wanted}"))
    return answer


def _close_all(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
