"""The handshake and the mapping against peers that misbehave: one reason each, nothing left open."""

import fcntl
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from blockyard.common.codec import encode
from blockyard.common.identity import fingerprint
from blockyard.common.messages.attach import MAX_FRAME, Closing, Grant, GroupGrant, GroupShape, Refused, Welcome
from blockyard.common.slot_table import TableHeader, table_bytes, write_header
from blockyard.engine import session
from blockyard.engine.detached import Detached
from blockyard.engine.hello import hello_of
from blockyard.engine.identity import EngineIdentity
from blockyard.engine.pool_map import MapRefused, PoolMap

IDENTITY = EngineIdentity("engine", "model", fingerprint({}))
HELLO = hello_of("rank", IDENTITY, [GroupShape(0, 16, 4096)], 1)
BOOT = bytes(range(16))
POOL_BYTES = 1 << 16
TABLE_BYTES = table_bytes(4)

Answer = Callable[[socket.socket], None]


def welcome(**changes: int) -> Welcome:
    values = {"protocol": 1, "session": 1, "pool_bytes": POOL_BYTES, "table_bytes": TABLE_BYTES} | changes
    return Welcome(
        version="1", boot_id=BOOT, worker="w", cluster_uid=b"", groups=[GroupGrant(0, 4096, 4096, 4096)],
        pin_ttl_ms=1000, **values,
    )  # fmt: skip


def says(message: object, descriptors: int = 0, cut: int | None = None) -> Answer:
    """A peer that answers any Hello with this."""
    frame = encode(message, MAX_FRAME) if not isinstance(message, bytes) else message

    def answer(peer: socket.socket) -> None:
        given = [os.memfd_create("x") for _ in range(descriptors)]
        socket.send_fds(peer, [frame[:cut]], given)
        for descriptor in given:
            os.close(descriptor)

    return answer


def says_nothing(peer: socket.socket) -> None:
    peer.settimeout(10)
    while peer.recv(4096):
        pass


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.path.relpath(tmp_path / "s"))
        listening.listen()
        yield listening


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        (says(Refused("size", "slot of 2 GiB exceeds the slab of 32 MiB")), "size"),
        (says(Refused("version", "1 to 1, not 2")), "version"),
        (says(Refused("fingerprint", "ranks differ")), "fingerprint"),
        (says(Refused("shape", "ranks differ")), "layout"),
        (says(Refused("busy", "another session lives")), "refused"),
        (says(Closing("stopping")), "no-worker"),
        (says(Grant(1, 0, b""), descriptors=2), "refused"),
        (says(welcome(), descriptors=0), "refused"),
        (says(welcome(), descriptors=1), "refused"),
        (says(welcome(protocol=9), descriptors=2), "version"),
        (says(b"\xff\xff\xff\xff"), "refused"),
        (says(b"\x00\x00\x00\x00"), "refused"),
        (says(b"\x01\x00\x00\x00\xc1"), "refused"),
        (says(welcome(), descriptors=2, cut=20), "no-worker"),
        (says_nothing, "timeout"),
    ],
)
def test_each_trouble_has_its_word(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch, answer: Answer, word: str
) -> None:
    monkeypatch.setitem(session.HANDSHAKE_SECONDS, "rank", 0.3 if answer is says_nothing else 10.0)
    before = len(os.listdir("/proc/self/fd"))

    def serve() -> None:
        peer, _ = listener.accept()
        with peer:
            peer.recv(4096)
            answer(peer)

    thread = threading.Thread(target=serve)
    thread.start()
    with pytest.raises(Detached) as caught:
        session.open_session(listener.getsockname(), HELLO)
    thread.join()
    assert caught.value.reason.word == word
    assert len(os.listdir("/proc/self/fd")) == before


def test_no_socket_at_all(tmp_path: Path) -> None:
    with pytest.raises(Detached) as caught:
        session.open_session(tmp_path / "absent", HELLO)
    assert caught.value.reason.word == "no-worker"


def memory(size: int, sealed: bool = True, header: TableHeader | None = None) -> int:
    descriptor = os.memfd_create("m", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    if header is not None:
        content = bytearray(size)
        write_header(memoryview(content).cast("Q"), header)
        os.pwrite(descriptor, content, 0)
    if sealed:
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return descriptor


GOOD = TableHeader(BOOT, 4, POOL_BYTES, 1 << 14)


def test_a_sound_pool_is_mapped_writable_and_let_go() -> None:
    pool, table = memory(POOL_BYTES), memory(TABLE_BYTES, header=GOOD)
    kept = os.dup(pool)
    before = len(os.listdir("/proc/self/fd"))
    mapped = PoolMap(pool, table, welcome())
    mapped.pool[5] = 7
    assert os.pread(kept, 1, 5) == b"\x07"
    assert (mapped.slots, mapped.generation(0), mapped.checksum(0, 0)) == (4, 0, None)
    mapped.close()
    assert len(os.listdir("/proc/self/fd")) == before - 2
    os.close(kept)


@pytest.mark.parametrize(
    "descriptors",
    [
        lambda: (memory(POOL_BYTES + 4096), memory(TABLE_BYTES, header=GOOD)),
        lambda: (memory(POOL_BYTES), memory(TABLE_BYTES + 4096, header=GOOD)),
        lambda: (memory(POOL_BYTES, sealed=False), memory(TABLE_BYTES, header=GOOD)),
        lambda: (memory(POOL_BYTES), memory(TABLE_BYTES)),
        lambda: (memory(POOL_BYTES), memory(TABLE_BYTES, header=GOOD._replace(boot_id=bytes(16)))),
        lambda: (memory(POOL_BYTES), memory(TABLE_BYTES, header=GOOD._replace(pool_bytes=1))),
        lambda: (memory(POOL_BYTES), memory(TABLE_BYTES, header=GOOD._replace(slots=5))),
    ],
    ids=["pool size", "table size", "unsealed", "no header", "other boot", "other pool", "too many slots"],
)
def test_memory_that_is_not_as_promised_is_refused(descriptors: Callable[[], tuple[int, int]]) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(MapRefused):
        PoolMap(*descriptors(), welcome())
    assert len(os.listdir("/proc/self/fd")) == before
