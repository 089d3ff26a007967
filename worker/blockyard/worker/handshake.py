"""The first frame of an engine's session: Hello, with exactly one pidfd of the process that sent it.

Owns reading that one frame and its descriptors, and the answer that carries descriptors. Nothing past the
frame is read, so that the rest of the stream can be given to a transport. Every descriptor that is not kept
is closed.
"""

from __future__ import annotations

import array
import asyncio
import os
import re
import socket
import struct
from dataclasses import dataclass

import msgspec

from blockyard.common.codec import PREFIX_BYTES, Decoder, FrameRefused, encode, frame_size
from blockyard.common.errors import BlockyardError
from blockyard.common.foreign_hello import foreign_hello
from blockyard.common.messages import attach

MAX_HELLO = 64 << 10
_ROOM_FOR_DESCRIPTORS = 16

# Not in Python 3.11's socket; Linux 6.5 and newer.
_SO_PEERPIDFD = 77

_hello: Decoder[attach.Hello] = Decoder(attach.Hello)


class HandshakeRefused(BlockyardError):
    """This peer gets no session; `code` is a bounded word."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Introduction:
    """A well-formed Hello and a pidfd of who sent it, which the receiver now owns."""

    hello: attach.Hello
    pidfd: int
    pid: int


async def receive_hello(sock: socket.socket, timeout: float) -> Introduction:
    """The peer's introduction within `timeout` seconds, else HandshakeRefused or OSError."""
    descriptors: list[int] = []
    try:
        try:
            async with asyncio.timeout(timeout):
                size = frame_size(await _exactly(sock, PREFIX_BYTES, descriptors), MAX_HELLO)
                payload = await _exactly(sock, size, descriptors)
            hello = _decode(payload)
        except TimeoutError:
            raise HandshakeRefused("timeout", f"no whole Hello within {timeout:g} s") from None
        except FrameRefused as error:
            raise HandshakeRefused("malformed", str(error)) from error
        if len(descriptors) != 1:
            raise HandshakeRefused("pidfd", f"{len(descriptors)} descriptors came with Hello; right: one pidfd")
        return Introduction(hello, *_take_pidfd(sock, descriptors))
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _decode(payload: bytes) -> attach.Hello:
    try:
        return _hello.decode(payload)
    except FrameRefused:
        spoken = foreign_hello(payload, "hello", attach.PROTOCOL_MIN, attach.PROTOCOL_MAX)
        if spoken is None:
            raise
        raise HandshakeRefused(
            "version",
            f"engine {spoken.version} speaks protocol {spoken.low} to {spoken.high}, "
            f"this worker speaks {attach.PROTOCOL_MIN} to {attach.PROTOCOL_MAX}",
        ) from None


def send_with_descriptors(sock: socket.socket, message: msgspec.Struct, descriptors: list[int]) -> None:
    """Send a small frame at once, descriptors on it; OSError if a fresh socket does not take it whole."""
    frame = encode(message, attach.MAX_FRAME)
    sent = socket.send_fds(sock, [frame], descriptors, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
    if sent != len(frame):
        raise BlockingIOError(f"only {sent} of {len(frame)} bytes of {type(message).__name__} were taken")


async def _exactly(sock: socket.socket, size: int, descriptors: list[int]) -> bytes:
    """The next `size` bytes, not one more; descriptors that come with them are added to the list."""
    data = bytearray()
    while len(data) < size:
        try:
            data += _receive(sock, size - len(data), descriptors)
        except BlockingIOError:
            await _readable(sock)
    return bytes(data)


def _receive(sock: socket.socket, size: int, descriptors: list[int]) -> bytes:
    room = socket.CMSG_SPACE(_ROOM_FOR_DESCRIPTORS * array.array("i").itemsize)
    data, control, flags, _ = sock.recvmsg(size, room, socket.MSG_CMSG_CLOEXEC)
    for level, kind, content in control:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            whole = len(content) - len(content) % array.array("i").itemsize
            descriptors += array.array("i", content[:whole])
    if flags & socket.MSG_CTRUNC:
        raise HandshakeRefused("pidfd", f"more than {_ROOM_FOR_DESCRIPTORS} descriptors came; right: one pidfd")
    if not data:
        raise ConnectionResetError("the peer left before its Hello was whole")
    return data


async def _readable(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(sock.fileno(), wake)
    try:
        await ready
    finally:
        loop.remove_reader(sock.fileno())


def _take_pidfd(sock: socket.socket, descriptors: list[int]) -> tuple[int, int]:
    """The pidfd to watch, taken out of `descriptors`, and its process as we see it (0: in a PID namespace that we do
    not see). `descriptors` has the one that the peer sent.

    The kernel's own pidfd of the peer is taken where it gives one: a wrong one would say too early that nobody
    copies any more, or never. PIDs alone cannot tell two processes apart that are both in namespaces we do not see.
    """
    sent = descriptors[0]
    pid, peer = _pid_of(sent), _peer_pid(sock)
    if pid < 0:
        raise HandshakeRefused("gone", "the pidfd with Hello is of a process that has ended")
    known = _peer_pidfd(sock)
    if known is None:
        same = pid == peer
    else:
        descriptors.append(known)
        same = os.path.sameopenfile(sent, known) and not (pid and peer and pid != peer)
    if not same:
        raise HandshakeRefused("pidfd", f"the pidfd is of process {pid}, but process {peer} is connected")
    return descriptors.pop(), pid


def _pid_of(descriptor: int) -> int:
    """The process that a descriptor stands for: 0 if we do not see its namespace, -1 if it has ended.

    A descriptor of another kind would never say that its process died: its slots would stay held.
    """
    with open(f"/proc/self/fdinfo/{descriptor}", encoding="ascii") as info:
        found = re.search(r"^Pid:\s*(-?\d+)$", info.read(), re.MULTILINE)
    if found is None:
        raise HandshakeRefused("pidfd", "the descriptor with Hello is no pidfd; right: pidfd_open of the sender")
    return int(found[1])


def _peer_pid(sock: socket.socket) -> int:
    peer, _, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(peer)


def _peer_pidfd(sock: socket.socket) -> int | None:
    """None where the kernel does not give it. Before Linux 6.9 all pidfds look alike to sameopenfile."""
    try:
        return sock.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError:
        return None
