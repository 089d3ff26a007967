"""One fetch over a connection: the question, the answer, and the bytes straight into their slots.

Owns what an answer may look like and the comparison of checksums. Must never know what a failure means for a peer.
"""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from blockyard.common.codec import FrameRefused
from blockyard.common.messages import peer
from blockyard.worker.core.peers import wire
from blockyard.worker.peers.channel import Channel

_CHECKSUM_BYTES = 8

FAULTS: dict[int, wire.FetchFault] = {
    peer.FetchState.NOT_HERE: "not-here",
    peer.FetchState.BUSY: "busy",
    peer.FetchState.DEADLINE: "deadline",
    peer.FetchState.SHAPE: "shape",
}

Ended = Callable[[wire.PeerRead | wire.PeerFailed], None]
"""Called once per item, as soon as nothing touches its slot any more."""


class SlotMemory(Protocol):
    """The host pool, as peers' chunks are read into it and sent from it."""

    def areas(self, offset: int, areas: int, stride: int) -> list[memoryview]:
        """Each area of a slot."""


def ask(
    channel: Channel[peer.ToReader],
    number: int,
    order: wire.FetchChunks,
    items: Sequence[wire.FetchItem],
    deadline: float,
) -> peer.Fetched:
    """Ask for these; the answer, which says something of each and of nothing else. Otherwise FrameRefused."""
    channel.send(
        peer.Fetch(
            number=number,
            fingerprint=order.fingerprint,
            group=order.group,
            area_bytes=order.area_bytes,
            areas=order.areas,
            keys=b"".join(item.key for item in items),
            deadline_ms=max(1, min(peer.MAX_DEADLINE_MS, int(1000 * (deadline - time.monotonic())))),
        ),
        deadline,
    )
    answer = channel.receive(deadline)
    fault = _fault(answer, number, len(items), order.areas)
    if fault or not isinstance(answer, peer.Fetched):
        raise FrameRefused("malformed", f"the answer to a fetch is {fault}")
    return answer


def take(
    channel: Channel[peer.ToReader],
    order: wire.FetchChunks,
    items: Sequence[wire.FetchItem],
    answer: peer.Fetched,
    memory: SlotMemory,
    deadline: float,
    ended: Ended,
) -> None:
    """Receive what an answer announced. Raises where the connection fails; the rest of the items has not ended then."""
    for item, state in zip(items, answer.states, strict=True):
        if state != peer.FetchState.OK:
            ended(wire.PeerFailed(item.op, FAULTS[state]))
    coming = (item for item, state in zip(items, answer.states, strict=True) if state == peer.FetchState.OK)
    for item, said in zip(coming, answer.checksums, strict=True):
        with slot_areas(memory, item.offset, order.areas, order.stride, order.area_bytes) as areas:
            found = tuple(channel.receive_hashed(area, deadline) for area in areas)
        if found == unpacked(said):
            ended(wire.PeerRead(item.op, found))
        else:
            ended(wire.PeerFailed(item.op, "corrupt"))


@contextlib.contextmanager
def slot_areas(memory: SlotMemory, offset: int, areas: int, stride: int, area_bytes: int) -> Iterator[list[memoryview]]:
    """The payload of each area; nothing holds on to the pool afterwards."""
    with contextlib.ExitStack() as held:
        whole = [held.enter_context(area) for area in memory.areas(offset, areas, stride)]
        yield [held.enter_context(area[:area_bytes]) for area in whole]


def packed(checksums: Sequence[int]) -> bytes:
    """A chunk's checksums as they travel."""
    return struct.pack(f"<{len(checksums)}Q", *checksums)


def unpacked(said: bytes) -> tuple[int, ...]:
    """The same, back."""
    return struct.unpack(f"<{len(said) // _CHECKSUM_BYTES}Q", said)


def _fault(answer: peer.ToReader, number: int, keys: int, areas: int) -> str:
    """What is wrong with an answer; nothing, if it can be acted on."""
    if not isinstance(answer, peer.Fetched):
        return type(answer).__name__
    if answer.number != number:
        return f"of question {answer.number}, not of {number}"
    if len(answer.states) != keys or not set(answer.states) <= {peer.FetchState.OK, *FAULTS}:
        return f"of states {list(answer.states)} for {keys} keys"
    if len(answer.checksums) != answer.states.count(peer.FetchState.OK):
        return f"of {len(answer.checksums)} chunks' checksums for {answer.states.count(peer.FetchState.OK)} chunks"
    if any(len(one) != _CHECKSUM_BYTES * areas for one in answer.checksums):
        return f"of other than {areas} checksums for a chunk"
    return ""
