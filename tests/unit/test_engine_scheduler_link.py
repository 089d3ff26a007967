"""A scheduler's link whose peer does not read for a while, over a real pair of sockets."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from blockyard.common.codec import Decoder
from blockyard.common.link import BlockingLink
from blockyard.common.messages import attach
from blockyard.engine.detached import Detached
from blockyard.engine.scheduler_link import MAX_UNSENT, UNSENT_SECONDS, SchedulerLink
from blockyard.engine.session import Session

REQUESTS = 2000
WELCOME = attach.Welcome(1, "1", 1, bytes(16), "w", b"", 4096, 4096, [], 1000)


class Pair:
    """The link under test, its clock, and the other end."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self.now = 0.0
        session = Session(WELCOME, BlockingLink(ours, Decoder(attach.ToEngine), attach.MAX_FRAME), ())
        self.link = SchedulerLink(session, 1, lambda: self.now)
        self.other: BlockingLink[attach.FromEngine] = BlockingLink(theirs, Decoder(attach.FromEngine), attach.MAX_FRAME)


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.link.close()
    pair.other.close()


def question(seq: int, keys: int = 6) -> attach.Acquire:
    return attach.Acquire(seq, f"r{seq}", [attach.Run(0, 0, b"", bytes(32 * keys))])


def test_a_burst_is_kept_and_sent_in_order_when_the_worker_reads(pair: Pair) -> None:
    for seq in range(REQUESTS):
        pair.link.send(question(seq))
    heard = []
    while len(heard) < REQUESTS:
        pair.link.push()
        message = pair.other.receive(5.0)
        assert isinstance(message, attach.Acquire)
        heard.append(message.seq)
    assert heard == list(range(REQUESTS))


def test_a_question_that_is_still_here_goes_out_while_its_answer_is_awaited(pair: Pair) -> None:
    for seq in range(REQUESTS):
        pair.link.send(question(seq))
    answered = 0
    while answered < REQUESTS:
        assert pair.link.receive(0.0) is None
        message = pair.other.receive(5.0)
        assert isinstance(message, attach.Acquire)
        answered += 1
    pair.other.send(attach.Grant(REQUESTS - 1, 0, bytes(6)), 5.0)
    grant = pair.link.receive(5.0)
    assert grant is not None and grant.seq == REQUESTS - 1


def test_a_worker_that_reads_nothing_for_long_is_stuck(pair: Pair) -> None:
    for seq in range(REQUESTS):
        pair.link.send(question(seq))
    pair.now = UNSENT_SECONDS + 0.1
    with pytest.raises(Detached) as caught:
        pair.link.push()
    assert caught.value.reason.word == "timeout"


def test_what_may_pile_up_is_bounded(pair: Pair) -> None:
    with pytest.raises(Detached, match="does not read"):
        for seq in range(MAX_UNSENT // (32 * 4096)):
            pair.link.send(question(seq, 4096))
            pair.link.send(question(seq, 4096))


def test_a_peer_that_is_gone_is_told(pair: Pair) -> None:
    pair.other.close()
    with pytest.raises(Detached) as caught:
        pair.link.send(question(1))
        pair.link.receive(0.0)
    assert caught.value.reason.word == "no-worker"
