"""A worker that answers nonsense: whatever it sends, an engine's links give an answer that fits, or say Detached."""

from __future__ import annotations

import random
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from blockyard.common.codec import Decoder, encode
from blockyard.common.link import BlockingLink
from blockyard.common.messages import attach
from blockyard.engine import rank_link
from blockyard.engine.answers import Answers
from blockyard.engine.detached import Detached
from blockyard.engine.jobs import BlockRange, CopyJob
from blockyard.engine.rank_link import RankLink
from blockyard.engine.scheduler_link import SchedulerLink
from blockyard.engine.session import Session
from support.hostile_frames import HostileFrames, members

FRAMES = 3000
POOL_BYTES, SLOTS, AREA = 1 << 20, 64, 4096
WELCOME = attach.Welcome(
    1, "1", 1, bytes(16), "w", b"", POOL_BYTES, 4096, [attach.GroupGrant(0, AREA, AREA, AREA)], 1000
)


@contextmanager
def answered_by(data: bytes) -> Iterator[Session]:
    """A session whose worker has said this, and hangs up."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
        theirs.settimeout(5)
        theirs.sendall(data)
        theirs.shutdown(socket.SHUT_WR)
        yield Session(WELCOME, BlockingLink(ours, Decoder(attach.ToEngine), attach.MAX_FRAME), ())


@pytest.fixture
def frames() -> HostileFrames:
    return HostileFrames(7, members(attach.ToEngine), attach.MAX_FRAME)


def test_a_scheduler_takes_only_grants_that_were_asked_for(frames: HostileFrames) -> None:
    met: Counter[str] = Counter()
    for _ in range(FRAMES):
        with answered_by(frames.next()[1]) as session:
            answers = Answers()
            seq = answers.ask(2, 0.0)
            try:
                grant = SchedulerLink(session, 1).receive(0.0)
                assert grant is not None, "the worker has hung up"
                answers.answered(grant, 1, 0.0)
            except Detached as trouble:
                met[trouble.reason.word] += 1
                continue
            taken = answers.take(seq)
            assert taken is not None and len(taken.states) == 2
            met["taken"] += 1
    assert met["refused"] > FRAMES / 4 and met["no-worker"] > 0, met


def test_a_rank_takes_only_places_inside_its_pool(frames: HostileFrames, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(rank_link.RESOLVE_SECONDS, "load", 5.0)
    job = CopyJob(1, "load", [bytes(32), bytes(32)], [BlockRange([0]), BlockRange([1])], 3)
    draw = random.Random(7)
    met: Counter[str] = Counter()
    for number in range(FRAMES):
        data = frames.next()[1] if number % 2 else _resolved(draw)
        with answered_by(data) as session:
            link = RankLink(session, 0, SLOTS)
            try:
                places = link.resolve(job, 0)
            except Detached as trouble:
                met[trouble.reason.word] += 1
                continue
            assert len(places) == 2
            for place in places:
                assert 0 <= place.slot < SLOTS and 0 <= place.offset <= POOL_BYTES - AREA
            met["taken"] += 1
    assert met["refused"] > 0 and met["no-worker"] > 0 and met["taken"] > 0, met


def _resolved(draw: random.Random) -> bytes:
    """An answer to the question, with places anywhere."""
    columns = [[draw.choice([0, 1, SLOTS - 1, SLOTS, 2**53]) for _ in range(2)] for _ in range(2)]
    offsets = [draw.choice([0, AREA, POOL_BYTES - AREA, POOL_BYTES - AREA + 1, POOL_BYTES, 2**53]) for _ in range(2)]
    states = bytes(draw.choice([0, 0, 0, 4, 99]) for _ in range(2))
    return encode(attach.Resolved(1, 1, states, columns[0], columns[1], offsets), attach.MAX_FRAME)
