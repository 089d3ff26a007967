"""Chunks between two workers' ends of the peer channel: right bytes in their place, or one fault, in time."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator

import pytest

from blockyard.common.codec import Decoder
from blockyard.common.link import LinkClosed
from blockyard.common.messages import peer
from blockyard.worker.core.peers import wire
from blockyard.worker.peers import server as peer_server
from blockyard.worker.peers.channel import Channel
from support.peer_end import INCARNATION, SECONDS, UID, WORLD, PeerEnd, key

SHORT = 0.3


@pytest.fixture
def holder() -> Iterator[PeerEnd]:
    with PeerEnd("holder") as end:
        yield end


@pytest.fixture
def reader() -> Iterator[PeerEnd]:
    with PeerEnd("reader") as end:
        yield end


def test_chunks_come_as_they_were_and_nothing_beside_them_changes(holder: PeerEnd, reader: PeerEnd) -> None:
    contents = [holder.hold(number, os.urandom(2 * 5000)) for number in range(5)]
    order = reader.order("holder", holder.address, [0, 1, 99, 2, 3, 4])
    assert reader.results(order) == [*contents[:2], "not-here", *contents[2:]]
    used = {item.offset + area * reader.stride for item in order.items for area in (0, 1)}
    beside = [at for at in range(0, 64 * reader.stride, reader.stride) if at not in used]
    view = reader.pool.memory.view
    assert not any(any(view[at : at + 5000]) for at in beside)
    assert not any(any(view[at + 5000 : at + reader.stride]) for at in used)
    assert holder.counts["sent"] == 5 * 2 * 5000
    holder.wait(lambda: len(holder.of(wire.PeerServed)) == 1, "served")


def test_more_keys_than_one_question_may_have(holder: PeerEnd, reader: PeerEnd) -> None:
    contents = [holder.hold(number) for number in range(100)]
    assert reader.fetch(holder, *range(100)) == contents
    assert len(holder.of(wire.PeerAsked)) == 2


def test_a_connection_is_used_again_and_a_dead_one_is_replaced(reader: PeerEnd) -> None:
    with PeerEnd("holder") as holder:
        content = holder.hold(1)
        assert [reader.fetch(holder, 1) for _ in range(3)] == [[content]] * 3
        assert holder.server.sessions == reader.fetching.connections == 1
        assert {asked.session for asked in holder.of(wire.PeerAsked)} == {1}  # type: ignore[attr-defined]
        for session in holder.server._sessions.copy().values():
            session.cut()
        holder.wait(lambda: holder.of(wire.PeerSessionClosed), "the session is over")
        assert reader.fetch(holder, 1) == [content]
    assert reader.fetch(holder, 1) == ["gone"]
    assert reader.counts["failed connect"] == 1


def test_bytes_that_do_not_match_their_checksum_are_not_taken(holder: PeerEnd, reader: PeerEnd) -> None:
    right = [holder.hold(number) for number in range(3)]
    holder.spoil(1)
    assert reader.fetch(holder, 0, 1, 2) == [right[0], "corrupt", right[2]]


def test_another_shape_is_told(holder: PeerEnd) -> None:
    holder.hold(1)
    with PeerEnd("reader", area_bytes=6000) as reader:
        assert reader.fetch(holder, 1) == ["shape"]


def test_a_peer_whose_core_does_not_answer_is_given_up_and_answers_later(holder: PeerEnd, reader: PeerEnd) -> None:
    content = holder.hold(1)
    holder.answering = False
    assert reader.fetch(holder, 1, deadline=SHORT) == ["deadline"]
    (asked,) = holder.of(wire.PeerAsked)
    holder.wait(lambda: holder.of(wire.PeerSessionClosed), "the session is over")
    assert not holder.of(wire.PeerServed)
    holder.answer(asked)  # type: ignore[arg-type]
    holder.wait(lambda: holder.of(wire.PeerServed), "what nobody waits for is over at once")
    holder.answering = True
    assert reader.fetch(holder, 1) == [content]


def test_what_nobody_wants_any_more_ends_at_once_running_or_not(holder: PeerEnd, reader: PeerEnd) -> None:
    holder.hold(1)
    holder.answering = False
    orders = [reader.order("holder", holder.address, [1, 2], deadline=600) for _ in range(5)]
    holder.wait(lambda: len(holder.of(wire.PeerAsked)) == 2, "as many run as may")
    for order in orders:
        reader.fetching.cancel([order.items[0].op])
    assert not any(reader._ended[order.items[0].op].qsize() for order in orders[:2]), "the rest is still wanted"
    for order in orders:
        reader.fetching.cancel([order.items[1].op])
        assert reader.results(order) == ["deadline", "deadline"]


def test_what_waits_behind_a_peer_that_hangs_ends_in_time_and_others_are_served(
    holder: PeerEnd, reader: PeerEnd
) -> None:
    content = holder.hold(1)
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        address = f"127.0.0.1:{hanging.getsockname()[1]}"
        orders = [reader.order("hanging", address, [1], deadline=SHORT) for _ in range(30)]
        assert reader.fetch(holder, 1) == [content]
        time.sleep(SHORT)
        reader.fetching.tick()
        assert [reader.results(order) for order in orders] == [["deadline"]] * 30


def test_a_peer_that_hangs_holds_up_nobody_where_one_thread_rests(holder: PeerEnd, reader: PeerEnd) -> None:
    content = holder.hold(1)
    with PeerEnd("other") as other:
        assert reader.fetch(other, 1) == ["not-here"]
    reader.wait(lambda: reader.fetching._resting == 1, "the only thread rests")
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        with reader.fetching._wake:  # so that the thread does not wake up between the two
            slow = reader.order("hanging", f"127.0.0.1:{hanging.getsockname()[1]}", [1], deadline=SECONDS / 4)
            quick = reader.order("holder", holder.address, [1])
        assert reader.results(quick) == [content]
        assert not reader._ended[slow.items[0].op].qsize(), "served before the peer that hangs is given up"
        reader.fetching.cancel([slow.items[0].op])


def test_what_goes_beyond_the_bound_is_refused_at_once(reader: PeerEnd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blockyard.worker.peers.fetching.MOST_WAITING", 1)
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        address = f"127.0.0.1:{hanging.getsockname()[1]}"
        orders = [reader.order("hanging", address, [1], deadline=SHORT) for _ in range(10)]
        time.sleep(SHORT)
        reader.fetching.tick()
        assert {reader.results(order)[0] for order in orders} == {"busy", "deadline"}


# By hand, as a peer that reads.


def hello(**changes: object) -> peer.PeerHello:
    said = {
        "protocol_min": peer.PROTOCOL_MIN,
        "protocol_max": peer.PROTOCOL_MAX,
        "version": "test",
        "cluster": "test",
        "cluster_uid": UID,
        "node": "hand",
        "incarnation": 1,
        "to_node": "holder",
        "to_incarnation": INCARNATION,
    }
    return peer.PeerHello(**{**said, **changes})  # type: ignore[arg-type]


def connected(holder: PeerEnd) -> Channel[peer.ToReader]:
    return Channel(socket.create_connection(("127.0.0.1", holder.port)), Decoder(peer.ToReader))


def greeted(holder: PeerEnd, said: peer.PeerHello | None = None) -> Channel[peer.ToReader]:
    channel = connected(holder)
    channel.send(said or hello(), soon())
    assert isinstance(channel.receive(soon()), peer.PeerWelcome)
    return channel


def soon() -> float:
    return time.monotonic() + SECONDS


def fetch(deadline_ms: int, number: int, area_bytes: int = 5000) -> peer.Fetch:
    return peer.Fetch(1, WORLD, 0, area_bytes, 2, key(number), deadline_ms)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"cluster": "other"}, "cluster"),
        ({"cluster_uid": b"v" * 16}, "uid"),
        ({"to_node": "someone"}, "life"),
        ({"to_incarnation": INCARNATION - 1}, "life"),
        ({"protocol_min": 7, "protocol_max": 9}, "version"),
    ],
)
def test_who_is_not_meant_is_told_why(holder: PeerEnd, changes: dict[str, object], code: str) -> None:
    channel = connected(holder)
    channel.send(hello(**changes), soon())
    answer = channel.receive(soon())
    assert isinstance(answer, peer.PeerRefused)
    assert answer.code == code
    holder.wait(lambda: holder.counts[f"refused {code}"] == 1, "counted")
    channel.close()


@pytest.mark.parametrize("first", [b"\0\0\0\0", b"GET / HTTP/1.1\r\n\r\n", b"\4\0\0\0\xc1\xc1\xc1\xc1"])
def test_first_words_that_are_no_hello_end_the_connection(holder: PeerEnd, first: bytes) -> None:
    channel = connected(holder)
    channel.send_bytes(memoryview(first), soon())
    assert getattr(channel.receive(soon()), "code", None) == "hello"
    channel.close()
    holder.wait(lambda: holder.counts["refused hello"] == 1, "counted")


def test_a_question_before_the_hello_and_a_hello_twice_are_refused(holder: PeerEnd) -> None:
    channel = connected(holder)
    channel.send(fetch(1000, 1), soon())
    assert getattr(channel.receive(soon()), "code", None) == "hello"
    channel.close()
    channel = greeted(holder)
    channel.send(hello(), soon())
    with pytest.raises(LinkClosed):
        channel.receive(soon())
    channel.close()
    holder.wait(lambda: holder.counts["frame unexpected"] == 1, "counted")
    assert not holder.of(wire.PeerAsked)


def test_a_peer_that_does_not_take_what_it_asked_for_is_cut() -> None:
    with PeerEnd("holder", area_bytes=8 << 20, pool_bytes=16 << 20) as holder:
        holder.hold(1)
        channel = greeted(holder)
        channel.send(fetch(int(1000 * SHORT), 1, 8 << 20), soon())
        holder.wait(lambda: holder.of(wire.PeerServed), "it is over, though nothing was read")
        holder.wait(lambda: holder.of(wire.PeerSessionClosed), "and so is the connection")
        assert holder.counts["cut"] == 1
        assert [type(one).__name__ for one in holder.events] == ["PeerAsked", "PeerServed", "PeerSessionClosed"]
        channel.close()


def test_a_peer_that_leaves_in_the_middle_leaves_nothing_behind() -> None:
    with PeerEnd("holder", area_bytes=8 << 20, pool_bytes=16 << 20) as holder:
        holder.hold(1)
        channel = greeted(holder)
        channel.send(fetch(60_000, 1, 8 << 20), soon())
        assert isinstance(channel.receive(soon()), peer.Fetched)
        channel.close()
        holder.wait(lambda: holder.of(wire.PeerServed), "it is over")
        holder.wait(lambda: not holder.server.sessions, "and so is the connection")
        assert holder.counts["cut"] == 0


def test_there_are_only_so_many_connections(holder: PeerEnd, monkeypatch: pytest.MonkeyPatch) -> None:
    channels = [greeted(holder) for _ in range(peer_server.MOST_PER_NODE)]
    channels.append(connected(holder))
    channels[-1].send(hello(), soon())
    assert getattr(channels[-1].receive(soon()), "code", None) == "busy"
    monkeypatch.setattr(peer_server, "MOST_STRANGERS", 2)
    holder.wait(lambda: holder.server.sessions == peer_server.MOST_PER_NODE, "the refused one is gone")
    channels += [connected(holder) for _ in range(2)]
    holder.wait(lambda: holder.server.sessions == peer_server.MOST_PER_NODE + 2, "strangers are in")
    channels.append(connected(holder))
    with pytest.raises(LinkClosed):
        channels[-1].receive(soon())
    holder.wait(lambda: holder.counts["refused crowded"] == 1, "counted")
    for channel in channels:
        channel.close()
    holder.wait(lambda: not holder.server.sessions, "all are gone")
