"""What must hold of chunks on their way between workers. Owns the checks; reads the machine, and changes nothing."""

from typing import TYPE_CHECKING

from blockyard.worker.core.chunks import Chunk, ChunkState
from blockyard.worker.core.orders import MAX_UNDER_WAY

if TYPE_CHECKING:
    from blockyard.worker.core.worker import WorkerCore


def copied_for_peers(core: "WorkerCore") -> list[Chunk]:
    """Whose slots peers' connections may touch: once for each try of a fetch and each answer to a peer."""
    serving = core.peers.serving
    served = [chunk for one in (*serving.all.values(), *serving.leaving) for chunk in one.chunks.values()]
    return served + [fetch.chunk for fetch in core.peers.fetching.by_op.values()]


def fetches_in_order(core: "WorkerCore") -> str:
    """Each slot that is being fetched into has a fetch with a try under way and a deadline, and each fetch a slot."""
    fetching, settings = core.peers.fetching, core.settings.peers
    for op, fetch in fetching.by_op.items():
        wanted = fetching.by_number.get(fetch.number) is fetch
        if fetch.op != op or wanted != (fetch.chunk.state is ChunkState.FILLING):
            return f"try {op} of fetch {fetch.number} goes to a slot that is {fetch.chunk.state.name}"
    for number, fetch in fetching.by_number.items():
        if fetch.op not in fetching.by_op or fetch.chunk.read != number or not fetch.wanted:
            return f"fetch {number} has no try under way, or another slot's number {fetch.chunk.read}"
        if fetch.deadline > core.now + settings.fetch_wait or len(fetch.tried) > settings.max_tries:
            return f"fetch {number} may go on for too long, after {len(fetch.tried)} tries"
    for chunk in core.holdings.owners.values():
        if chunk.from_peer and chunk.read and chunk.read not in fetching.by_number:
            return f"slot {chunk.slot} waits for fetch {chunk.read}, which is over"
    held = sum(fetch.chunk.size_class.slot_bytes for fetch in fetching.by_number.values())
    return "" if held == fetching.fetching_bytes else f"{held} bytes are being fetched into"


def served_in_order(core: "WorkerCore") -> str:
    """What peers get is ready, or dropped since; each question that waits does so for reads, and not for too long."""
    serving = core.peers.serving
    reads = {one.number for one in core.disk.operations.all.values() if one.kind == "read"}
    for session, one in serving.all.items():
        if one.asked.session != session or one.answered == bool(one.reads):
            return f"the question of peer session {session} is answered: {one.answered}, waits for {one.reads}"
        if not one.reads <= reads:
            return f"peer session {session} waits for reads {one.reads - reads} that are not under way"
        if not one.answered and one.deadline > core.now + one.asked.deadline_s:
            return f"peer session {session} waits too long"
    for chunk in (chunk for one in (*serving.all.values(), *serving.leaving) for chunk in one.chunks.values()):
        if chunk.state not in (ChunkState.READY, ChunkState.DOOMED) or not chunk.checked:
            return f"a peer gets slot {chunk.slot}, which is {chunk.state.name}"
    return ""


def peers_bounded(core: "WorkerCore") -> str:
    """Every book is within its bound."""
    peers, settings = core.peers, core.settings.peers
    sizes = {
        "questions": (len(peers.questions.all), settings.max_questions),
        "hints": (len(peers.holders), settings.max_hints),
        "chunks for peers": (peers.serving.chunks, settings.max_serving),
    }
    return ", ".join(f"{name}: {size} of {limit}" for name, (size, limit) in sizes.items() if size > limit)


def orders_in_order(core: "WorkerCore") -> str:
    """Each job under way waits for what is under way, or for room, and neither for ever."""
    reads = {one.number for one in core.disk.operations.all.values() if one.kind == "read"} | core.peers.reads
    for number, job in core.orders.under_way.items():
        if not job.open and not job.reads:
            return f"job {number} waits for nothing"
        if not job.reads.keys() <= reads:
            return f"job {number} waits for reads {job.reads.keys() - reads} that are not under way"
        if job.deadline > core.now + job.order.deadline_ms / 1000:
            return f"job {number} may go on for too long"
    under_way = len(core.orders.under_way)
    return "" if under_way <= MAX_UNDER_WAY else f"{under_way} jobs are under way, {MAX_UNDER_WAY} may"


PEER_CHECKS = {
    "orders-in-order": orders_in_order,
    "fetches-in-order": fetches_in_order,
    "served-in-order": served_in_order,
    "peers-bounded": peers_bounded,
}
