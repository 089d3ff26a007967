"""A peer that answers what it should not, says nothing, or stops in the middle: one fault for each chunk, in time."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import xxhash

from blockyard.common.codec import Decoder, encode
from blockyard.common.messages import peer
from blockyard.worker.peers.channel import Channel
from support.closing import Closing
from support.peer_end import SECONDS, PeerEnd, key

SHORT = 0.3
AREA, AREAS = 5000, 2
CHUNK = b"x" * AREA * AREAS
SUMS = xxhash.xxh3_64_intdigest(b"x" * AREA).to_bytes(8, "little") * AREAS
OK, NOT_HERE = bytes([peer.FetchState.OK]), bytes([peer.FetchState.NOT_HERE])

Say = Callable[[Channel[peer.FromReader], peer.Fetch], None]


class HandPeer(Closing):
    """Welcomes whoever comes as node "hand", and answers each question as it is told to."""

    def __init__(self, say: Say, *, welcome: bytes | None = None) -> None:
        self._say = say
        self._welcome = welcome
        self._sock = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._sock.getsockname()[1]}"
        self._channels: list[Channel[peer.FromReader]] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
        self._threads[0].join()
        for channel in self._channels:
            channel.cut()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._sock.accept()
                channel: Channel[peer.FromReader] = Channel(sock, Decoder(peer.FromReader))
                self._channels.append(channel)
                self._threads.append(threading.Thread(target=self._serve, args=(channel,), daemon=True))
                self._threads[-1].start()

    def _serve(self, channel: Channel[peer.FromReader]) -> None:
        with contextlib.suppress(Exception), contextlib.closing(channel):
            hello = channel.receive(soon())
            assert isinstance(hello, peer.PeerHello)
            if self._welcome is not None:
                channel.send_bytes(memoryview(self._welcome), soon())
                return
            channel.send(peer.PeerWelcome(1, "test", "hand", b"b" * 16), soon())
            while True:
                asked = channel.receive(soon())
                assert isinstance(asked, peer.Fetch)
                self._say(channel, asked)


def soon() -> float:
    return time.monotonic() + SECONDS


def answers(number: int | None = None, states: bytes = OK, sums: list[bytes] | None = None, data: bytes = CHUNK) -> Say:
    def say(channel: Channel[peer.FromReader], asked: peer.Fetch) -> None:
        said = peer.Fetched(asked.number if number is None else number, states, [SUMS] if sums is None else sums)
        channel.send(said, soon())
        channel.send_bytes(memoryview(data), soon())

    return say


def raw(data: bytes) -> Say:
    return lambda channel, asked: channel.send_bytes(memoryview(data), soon())


@pytest.fixture
def reader() -> Iterator[PeerEnd]:
    with PeerEnd("reader", areas=AREAS, area_bytes=AREA) as end:
        yield end


def one_fetch(reader: PeerEnd, say: Say, deadline: float = SECONDS, **how: bytes) -> str | bytes:
    with HandPeer(say, **how) as hand:
        (result,) = reader.results(reader.order("hand", hand.address, [1], deadline))
    return result


def test_a_sound_answer_is_taken(reader: PeerEnd) -> None:
    assert one_fetch(reader, answers()) == CHUNK
    assert one_fetch(reader, answers(states=NOT_HERE, sums=[], data=b"")) == "not-here"


LIES = {
    "number": answers(number=77),
    "too many states": answers(states=OK * 2, sums=[SUMS] * 2),
    "no such state": answers(states=b"\x63", sums=[]),
    "checksums without a chunk": answers(states=NOT_HERE),
    "a chunk without checksums": answers(sums=[]),
    "too few checksums": answers(sums=[SUMS[:8]]),
    "half a checksum": answers(sums=[SUMS[:-1]]),
    "wrong checksums": answers(sums=[bytes(16)]),
    "wrong bytes": answers(data=b"y" + CHUNK[1:]),
    "areas changed": answers(data=b"x" * AREA + b"y" * AREA),
    "another message": raw(encode(peer.PeerWelcome(1, "test", "hand", b"b" * 16), peer.MAX_FRAME)),
    "no message": raw(b"\4\0\0\0\xc1\xc1\xc1\xc1"),
    "an empty frame": raw(bytes(4)),
    "a frame without end": raw(b"\xff" * 4),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_a_fault_of_the_peer(reader: PeerEnd, lie: str) -> None:
    assert one_fetch(reader, LIES[lie]) == "corrupt"


def test_after_a_lie_the_connection_is_not_used_again(reader: PeerEnd) -> None:
    """What came behind the lie must not be taken for the next answer."""
    lies = [answers(number=77), answers()]
    with HandPeer(lambda channel, asked: lies.pop(0)(channel, asked)) as hand:
        assert reader.results(reader.order("hand", hand.address, [1])) == ["corrupt"]
        assert reader.results(reader.order("hand", hand.address, [1])) == [CHUNK]


def test_bytes_behind_an_answer_are_not_taken_for_the_next(reader: PeerEnd) -> None:
    says = [answers(data=CHUNK + b"more"), answers()]
    with HandPeer(lambda channel, asked: says.pop(0)(channel, asked)) as hand:
        assert reader.results(reader.order("hand", hand.address, [1])) == [CHUNK]
        time.sleep(0.05)
        assert reader.results(reader.order("hand", hand.address, [1])) == [CHUNK]


SILENCES: dict[str, Say] = {
    "no answer": lambda channel, asked: time.sleep(2 * SHORT),
    "no bytes": answers(data=b""),
    "half of the bytes": answers(data=CHUNK[: AREA + 1]),
}


@pytest.mark.parametrize("silence", SILENCES)
def test_a_peer_that_stops_is_left_at_the_deadline(reader: PeerEnd, silence: str) -> None:
    assert one_fetch(reader, SILENCES[silence], SHORT) == "deadline"


def test_one_byte_at_a_time_does_not_stretch_the_deadline(reader: PeerEnd) -> None:
    def trickle(channel: Channel[peer.FromReader], asked: peer.Fetch) -> None:
        answers(data=b"")(channel, asked)
        for _ in range(100):
            channel.send_bytes(memoryview(b"x"), soon())
            time.sleep(SHORT / 10)

    begun = time.monotonic()
    assert one_fetch(reader, trickle, SHORT) == "deadline"
    assert time.monotonic() - begun < 100 * SHORT / 10


def test_what_has_come_before_the_peer_left_counts_and_the_rest_does_not(reader: PeerEnd) -> None:
    def leave(channel: Channel[peer.FromReader], asked: peer.Fetch) -> None:
        answers(states=OK * 3, sums=[SUMS] * 3, data=CHUNK + CHUNK[:AREA])(channel, asked)
        raise ConnectionResetError

    with HandPeer(leave) as hand:
        order = reader.order("hand", hand.address, [1, 2, 3])
        assert reader.results(order) == [CHUNK, "gone", "gone"]


def test_nothing_is_written_to_a_slot_after_its_fetch_has_ended(reader: PeerEnd) -> None:
    go = threading.Event()

    def late(channel: Channel[peer.FromReader], asked: peer.Fetch) -> None:
        answers(data=CHUNK[:AREA])(channel, asked)
        go.wait(SECONDS)
        channel.send_bytes(memoryview(b"z" * AREA), soon())

    with HandPeer(late) as hand:
        order = reader.order("hand", hand.address, [1], SHORT)
        assert reader.results(order) == ["deadline"]
        go.set()
        time.sleep(0.1)
        assert reader.content(order.items[0]) == CHUNK[:AREA] + bytes(AREA)


@pytest.mark.parametrize(
    ("welcome", "fault", "reason"),
    [
        (b"", "gone", "connect"),
        (b"\xff\xff\xff\xff", "gone", "malformed"),
        (encode(peer.PeerWelcome(1, "test", "another", b"b" * 16), peer.MAX_FRAME), "gone", "malformed"),
        (encode(peer.PeerRefused("life", "no"), peer.MAX_FRAME), "gone", "refused"),
        (encode(peer.PeerRefused("busy", "no"), peer.MAX_FRAME), "busy", "busy"),
    ],
)
def test_a_peer_that_does_not_welcome_us(reader: PeerEnd, welcome: bytes, fault: str, reason: str) -> None:
    assert one_fetch(reader, answers(), welcome=welcome) == fault
    reader.wait(lambda: reader.counts[f"failed {reason}"] == 1, "counted")


@pytest.mark.parametrize("address", ["no-such-host.invalid:7", "127.0.0.1:1", "nonsense"])
def test_an_address_where_nobody_is(reader: PeerEnd, address: str) -> None:
    assert reader.results(reader.order("hand", address, [1]))[0] in ("gone", "deadline")


def test_the_key_asked_for_is_the_one_of_the_slot(reader: PeerEnd) -> None:
    asked: list[bytes] = []

    def say(channel: Channel[peer.FromReader], question: peer.Fetch) -> None:
        asked.append(question.keys)
        answers()(channel, question)

    assert one_fetch(reader, say) == CHUNK
    assert asked == [key(1)]
