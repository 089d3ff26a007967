"""The attach protocol spoken by hand: sessions, jobs and a mapped pool, with no code of the engine side.

Owns sockets and maps of one pretended engine. Each wait has a deadline.
"""

from __future__ import annotations

import mmap
import os
import socket
from pathlib import Path
from typing import TypeVar

import msgspec

from blockyard.common.codec import PREFIX_BYTES, Decoder, encode, frame_size
from blockyard.common.identity import DIGEST_BYTES
from blockyard.common.link import BlockingLink, LinkClosed
from blockyard.common.messages import attach
from blockyard.common.messages.states import CopyState
from blockyard.common.slot_table import SlotRecord, read_header, read_record
from support.closing import Closing

SECONDS = 10.0

_M = TypeVar("_M", bound=msgspec.Struct)


def key(number: int) -> bytes:
    """A key that is easy to tell from others."""
    return number.to_bytes(DIGEST_BYTES, "big")


def hello(**changes: object) -> attach.Hello:
    """A rank's Hello of an engine with one rank and areas of 8 KiB."""
    plain = attach.Hello(
        protocol_min=attach.PROTOCOL_MIN,
        protocol_max=attach.PROTOCOL_MAX,
        version="test",
        role="rank",
        engine="engine-a",
        model="tiny",
        rank=0,
        local_ranks=1,
        fingerprint=b"f" * 32,
        groups=[attach.GroupShape(0, 256, 8192)],
        gpu_cache_bytes=0,
    )
    return msgspec.structs.replace(plain, **changes)


def scheduler_hello(rank_hello: attach.Hello) -> attach.Hello:
    """The Hello of the scheduler that belongs to a rank."""
    groups = [msgspec.structs.replace(group, area_bytes=0) for group in rank_hello.groups]
    return msgspec.structs.replace(rank_hello, role="scheduler", groups=groups, rank=0)


class Session:
    """One session. Without a `message` the socket is only connected."""

    def __init__(self, path: Path, message: attach.Hello | None = None, descriptors: list[int] | None = None) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(SECONDS)
        self.sock.connect(str(path))
        self.received: list[int] = []
        self.answer: msgspec.Struct | None = None
        self.link: BlockingLink[attach.ToEngine] = BlockingLink(self.sock, Decoder(attach.ToEngine), attach.MAX_FRAME)
        if message is not None:
            self.introduce(message, descriptors)

    @property
    def welcome(self) -> attach.Welcome:
        assert isinstance(self.answer, attach.Welcome), self.answer
        return self.answer

    def introduce(self, message: attach.Hello, descriptors: list[int] | None = None) -> None:
        """Send Hello, with a pidfd of this process unless told otherwise, and take the answer."""
        self.begin(message, descriptors)
        self.take_answer()

    def begin(self, message: attach.Hello, descriptors: list[int] | None = None) -> None:
        """Send Hello and wait for nothing."""
        own = [os.pidfd_open(os.getpid())] if descriptors is None else []
        try:
            frame = encode(message, attach.MAX_FRAME)
            socket.send_fds(self.sock, [frame], own or descriptors or [])
        finally:
            for descriptor in own:
                os.close(descriptor)

    def take_answer(self) -> None:
        """Welcome (with descriptors, for a rank) or Refused."""
        prefix = self._exactly(PREFIX_BYTES)
        payload = self._exactly(frame_size(prefix, attach.MAX_FRAME))
        self.answer = Decoder[attach.ToEngine](attach.ToEngine).decode(payload)

    def send(self, message: msgspec.Struct) -> None:
        self.link.send(message, SECONDS)

    def receive(self, kind: type[_M]) -> _M:
        message = self.link.receive(SECONDS)
        assert isinstance(message, kind), message
        return message

    def ended(self) -> str:
        """Wait for the worker to end this session; returns the reason it gave, empty without one."""
        reason = ""
        self.sock.settimeout(SECONDS)
        try:
            while True:
                message = self.link.receive(SECONDS)
                reason = message.reason if isinstance(message, attach.Closing) else reason
        except LinkClosed:
            return reason

    def close(self) -> None:
        self.link.close()
        for descriptor in self.received:
            os.close(descriptor)
        self.received = []

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part, descriptors, _, _ = socket.recv_fds(self.sock, size - len(data), 8)
            self.received += descriptors
            assert part, "the worker closed the connection"
            data += part
        return data


class Engine(Closing):
    """A pretended engine with one rank: `store`, `acquire`, `load` as its processes would do them."""

    def __init__(self, path: Path, rank_hello: attach.Hello | None = None) -> None:
        message = rank_hello or hello()
        self.rank = Session(path, message)
        pool, table = self.rank.received
        self.pool = mmap.mmap(pool, self.rank.welcome.pool_bytes)
        self.table = mmap.mmap(table, self.rank.welcome.table_bytes, prot=mmap.PROT_READ)
        self.words = memoryview(self.table).cast("Q")
        self.header = read_header(self.words)
        self.area_bytes = message.groups[0].area_bytes
        self.scheduler = Session(path, scheduler_hello(message))
        self._jobs = 0

    def close(self) -> None:
        self.rank.close()
        self.scheduler.close()
        self.words.release()
        self.pool.close()
        self.table.close()

    def begin_store(self, keys: list[bytes], request: str = "r") -> attach.Resolved:
        """Fill and Resolve: the rank copies from here on."""
        self._jobs += 1
        blob = b"".join(keys)
        self.scheduler.send(attach.Fill(self._jobs, request, [attach.Run(0, 0, b"", blob)]))
        return self._resolve("store", 0, blob)

    def end_store(self, places: attach.Resolved, contents: list[bytes]) -> None:
        """Copy and tell."""
        for state, offset, content in zip(places.states, places.offsets, contents, strict=True):
            if state == CopyState.OK:
                self.pool[offset : offset + len(content)] = content
        copied = sum(map(len, contents))
        self.rank.send(attach.StoreDone(places.job, places.states, copied, 1))
        self.settle()

    def settle(self) -> None:
        """Until the worker has taken in all that the rank sent: links of one engine are not ordered."""
        self.rank.send(attach.Resolve(0, 0, "load", 0, key(0), 0))
        self.rank.receive(attach.Resolved)

    def store(self, contents: dict[bytes, bytes]) -> attach.Resolved:
        """Store whole chunks; returns where they went."""
        places = self.begin_store(list(contents))
        self.end_store(places, list(contents.values()))
        return places

    def acquire(self, keys: list[bytes], request: str = "r") -> attach.Grant:
        blob = b"".join(keys)
        self.scheduler.send(attach.Acquire(1, request, [attach.Run(0, 0, b"", blob)]))
        return self.scheduler.receive(attach.Grant)

    def load(self, grant: attach.Grant, keys: list[bytes]) -> list[bytes]:
        """What the pool holds of keys that a grant pins."""
        self._jobs += 1
        places = self._resolve("load", grant.grant, b"".join(keys))
        assert set(places.states) == {CopyState.OK}, places
        contents = [bytes(self.pool[offset : offset + self.area_bytes]) for offset in places.offsets]
        self.rank.send(attach.LoadDone(places.job, places.states, sum(map(len, contents)), 1))
        return contents

    def record(self, slot: int) -> SlotRecord:
        return read_record(self.words, slot)

    def _resolve(self, kind: str, grant: int, blob: bytes) -> attach.Resolved:
        self.rank.send(attach.Resolve(self._jobs, self._jobs, kind, grant, blob, 1000))  # type: ignore[arg-type]
        return self.rank.receive(attach.Resolved)
