"""What must hold after every event. Owns the names and the checks; reads the machine, and changes nothing."""

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from blockyard.common.digests import RollingDigests
from blockyard.worker.core.chunks import Chunk, ChunkState
from blockyard.worker.core.disk.invariants import DISK_CHECKS
from blockyard.worker.core.fills import FillJob
from blockyard.worker.core.peers.invariants import PEER_CHECKS, copied_for_peers
from blockyard.worker.core.sessions import SessionState

if TYPE_CHECKING:
    from blockyard.worker.core.worker import WorkerCore


_LEDGER_STEPS = 8


class InvariantBroken(AssertionError):
    """The machine is in a state that it must never be in."""

    def __init__(self, name: str, detail: str) -> None:
        super().__init__(f"{name}: {detail}")
        self.name = name
        self.detail = detail


def check(core: "WorkerCore") -> None:
    """Raise InvariantBroken for the first invariant that does not hold."""
    for name, faults in CHECKS.items():
        detail = faults(core)
        if detail:
            raise InvariantBroken(name, detail)


def _books_balance(core: "WorkerCore") -> str:
    """free + filling + ready + doomed = the slots of all carved slabs, and no slot is two of these."""
    holdings, pool = core.holdings, core.holdings.pool
    free = [slot for slab in pool.slabs.values() for slot in slab.free]
    every = [slot for slab in pool.slabs.values() for slot in pool.slots_of(slab)]
    if sorted(free + list(holdings.owners)) != sorted(every):
        return f"{len(free)} free + {len(holdings.owners)} owned slots are not the {len(every)} carved ones"
    if sorted(pool.free_slabs + list(pool.slabs)) != list(range(core.settings.slabs)):
        return "a slab is neither free nor carved, or both"
    counted = Counter(chunk.state for chunk in holdings.owners.values())
    if any(holdings.slots[state] != counted[state] for state in ChunkState):
        return f"slots by state are {counted}, the books say {holdings.slots}"
    sizes = [0] * len(ChunkState)
    for chunk in holdings.owners.values():
        sizes[chunk.state] += chunk.size_class.slot_bytes
    return "" if sizes == holdings.bytes else f"bytes by state are {sizes}, the books say {holdings.bytes}"


def _slabs_in_order(core: "WorkerCore") -> str:
    """Slots of the carved slabs do not overlap, and each slab is in the lists of its class alone."""
    for number, slab in core.holdings.pool.slabs.items():
        size_class = slab.size_class
        if size_class.slabs.get(number) is not slab:
            return f"slab {number} is not in its class"
        if bool(slab.free) != (number in size_class.roomy):
            return f"slab {number} has {len(slab.free)} free slots, roomy is {number in size_class.roomy}"
    for chunk in core.holdings.owners.values():
        if chunk.slab is None or chunk.slot not in core.holdings.pool.slots_of(chunk.slab):
            return f"slot {chunk.slot} is not in its chunk's slab"
        if chunk.slab.size_class is not chunk.size_class:
            return f"slot {chunk.slot} is in a slab of another class"
        if chunk.offset != core.holdings.pool.offset(chunk.slab, chunk.slot):
            return f"slot {chunk.slot} has moved"
    carved = sum(len(size_class.slabs) for size_class in core.worlds.classes())
    return "" if carved == len(core.holdings.pool.slabs) else "a class has a slab that is not its own"


def _no_reuse_while_pinned(core: "WorkerCore") -> str:
    """Whatever is pinned or copied owns its slot."""
    users: list[Chunk] = [c for grant in core.grants.grants.values() for c in grant.chunks.values()]
    users += [one.chunk for one in core.disk.operations.all.values() if one.chunk is not None]
    users += copied_for_peers(core)
    for session in core.book.sessions.values():
        users += [c for copy in session.copies.values() for c in copy.chunks if c is not None]
    for chunk in users:
        if core.holdings.owners.get(chunk.slot) is not chunk:
            return f"slot {chunk.slot} is used by {chunk.state.name} chunk {chunk.key.hex()[:8]}, not its own"
    return ""


def _every_pin_owned_and_dated(core: "WorkerCore") -> str:
    """A chunk's pins and copiers are exactly those of grants and sessions, and a session is there for each."""
    pins = Counter(c for grant in core.grants.grants.values() for c in grant.chunks.values())
    copiers = Counter(
        chunk
        for session in core.book.sessions.values()
        for copy in session.copies.values()
        for chunk in copy.chunks
        if chunk is not None
    )
    copiers += Counter(one.chunk for one in core.disk.operations.all.values() if one.chunk is not None)
    copiers += Counter(copied_for_peers(core))
    for chunk in core.holdings.owners.values():
        if (chunk.pins, chunk.copiers) != (pins[chunk], copiers[chunk]):
            return (
                f"slot {chunk.slot} counts {chunk.pins} pins and {chunk.copiers} copiers, "
                f"there are {pins[chunk]} and {copiers[chunk]}"
            )
        if chunk.state is ChunkState.DOOMED and not chunk.pins and not chunk.copiers:
            return f"slot {chunk.slot} is doomed, but nobody uses it"
    per_engine = Counter({grant.engine: 0 for grant in core.grants.grants.values()})
    for grant in core.grants.grants.values():
        per_engine[grant.engine] += len(grant.chunks)
        if not grant.chunks or grant.deadline > core.now + core.settings.pin_ttl:
            return f"grant {grant.number} is empty, or ends too late"
        if grant.session not in core.book.sessions:
            return f"grant {grant.number} is owned by session {grant.session}, which is gone"
        if grant not in grant.engine.requests.get(grant.request, ()):
            return f"grant {grant.number} is not among those of request {grant.request}"
    wrong = [one.id for one, count in per_engine.items() if one.pins != count]
    return f"pins of engines {wrong} are miscounted" if wrong else ""


def _one_visible_copy_per_key(core: "WorkerCore") -> str:
    """The index and the owners agree on what is filling or ready, and no key is there twice."""
    shown = [c for c in core.holdings.owners.values() if c.state is not ChunkState.DOOMED]
    keys = Counter(chunk.key for chunk in shown)
    if len(keys) != len(shown):
        return f"key {keys.most_common(1)[0][0].hex()[:8]} is held twice"
    if {c.key: c for c in shown} != core.holdings.index:
        return "the index is not what the slots hold"
    for chunk in shown:
        if (chunk.state is ChunkState.READY) != (chunk.key in chunk.size_class.policy):
            return f"slot {chunk.slot} is {chunk.state.name}, which its eviction order does not know"
    ordered = sum(len(size_class.policy) for size_class in core.worlds.classes())
    return "" if ordered == core.holdings.slots[ChunkState.READY] else "an eviction order has keys too many"


def _commit_before_visible(core: "WorkerCore") -> str:
    """What is ready has every part, and what can be given away has its checksum."""
    for chunk in core.holdings.owners.values():
        whole = chunk.parts == chunk.size_class.all_parts
        if whole != (chunk.state is ChunkState.READY) and chunk.state is not ChunkState.DOOMED:
            return f"slot {chunk.slot} is {chunk.state.name} with parts {chunk.parts:b}"
        if chunk.checked and not whole:
            return f"slot {chunk.slot} is checked with parts {chunk.parts:b}"
    unchecked = sum(chunk.state is ChunkState.READY and not chunk.checked for chunk in core.holdings.owners.values())
    return "" if unchecked == core.holdings.unchecked else f"{unchecked} chunks are unchecked"


def _bounded_wait(core: "WorkerCore") -> str:
    """Every filling chunk belongs to a job with a deadline, and every job to a session."""
    fills = core.reservations.fills
    filling = Counter[FillJob]()
    for chunk in core.holdings.owners.values():
        job = chunk.job
        if (job is not None or chunk.read > 0) != (chunk.state is ChunkState.FILLING):
            return f"slot {chunk.slot} is {chunk.state.name}, its job is {job and job.number}, its read {chunk.read}"
        if job is not None:
            filling[job] += 1
            if job not in fills.jobs or job.engine.jobs.get(job.number) is not job:
                return f"slot {chunk.slot} is being filled by job {job.number}, which is forgotten"
    for job in fills.jobs:
        if job.open != filling[job] or job.deadline > core.now + core.settings.fill_deadline:
            return f"job {job.number} has {filling[job]} open chunks, counts {job.open}, or ends too late"
        if job.session not in core.book.sessions:
            return f"job {job.number} is of session {job.session}, which is gone"
    for session, _ in fills.parked:
        if core.book.live(session) is None:
            return f"a resolve of session {session} waits, which is not attached"
    total = sum(filling.values())
    return "" if total == core.reservations.filling else f"{total} chunks are being filled"


def _bounded_queues(core: "WorkerCore") -> str:
    settings, fills = core.settings, core.reservations.fills
    engines = {session.engine for session in core.book.sessions.values()}
    sizes = {
        "sessions": (len(core.book), settings.max_sessions),
        "worlds": (len(core.worlds.by_fingerprint), settings.max_worlds),
        "parked resolves": (len(fills.parked), settings.max_parked),
        "hints of a session": (
            max((len(one.hints) for one in core.book.sessions.values()), default=0),
            settings.max_hints_per_session,
        ),
        "ghosts": (len(core.holdings.ghosts), settings.max_ghosts),
        "pins of an engine": (max((e.pins for e in engines), default=0), settings.max_pins_per_engine),
        "fills of an engine": (max((e.filling for e in engines), default=0), settings.max_fills_per_engine),
        "jobs of an engine": (max((len(e.jobs) for e in engines), default=0), settings.max_jobs_per_engine),
    }
    over = [f"{name}: {size} of {limit}" for name, (size, limit) in sizes.items() if size > limit]
    return ", ".join(over) if over or core.outbox.bounded else "outbox"


def _ledger_is_true(core: "WorkerCore") -> str:
    """What the leader is to know is what may be given away, and the digests are of that. Looked at in some steps only:
    it takes longer than the rest together.
    """
    if core.holdings.step % _LEDGER_STEPS:
        return ""
    ledger = core.outbox.ledger
    entered = {one.key: one.tiers for one in ledger.entries()}
    if entered != {key: tiers for key, _, tiers in core.holdings.shared()}:
        return "the ledger is not what may be given away"
    digests = RollingDigests()
    for key, tiers in entered.items():
        digests.flip(key, tiers)
    if digests.packed() != ledger.digests.packed():
        return "the digests are not those of what is held"
    return "" if len(entered) == ledger.keys else f"the ledger counts {ledger.keys} keys, has {len(entered)}"


def _sessions_in_order(core: "WorkerCore") -> str:
    """An engine's places hold live sessions of its own, and it is known as long as one is live."""
    for session in core.book.sessions.values():
        engine = session.engine
        place = engine.scheduler if session.role == "scheduler" else engine.ranks.get(session.rank)
        if (place is session) != (session.state is SessionState.LIVE):
            return f"session {session.id} is {session.state.value}, its place is {place and place.id}"
        if session.hints and (session.state is not SessionState.LIVE or session.role != "scheduler"):
            return f"session {session.id}, a {session.state.value} {session.role}, has hints of requests"
        if session.state is SessionState.LIVE and core.book.engines.get(engine.id) is not engine:
            return f"session {session.id} is live, its engine {engine.id} is forgotten"
    for engine in core.book.engines.values():
        there = sum(session.engine is engine for session in core.book.sessions.values())
        if not engine.live or engine.sessions != there:
            return f"engine {engine.id} counts {engine.sessions} sessions, has {there}"
    return ""


CHECKS: dict[str, Callable[["WorkerCore"], str]] = {
    "books-balance": _books_balance,
    "slabs-in-order": _slabs_in_order,
    "no-reuse-while-pinned": _no_reuse_while_pinned,
    "every-pin-owned-and-dated": _every_pin_owned_and_dated,
    "one-visible-copy-per-key": _one_visible_copy_per_key,
    "commit-before-visible": _commit_before_visible,
    "bounded-wait": _bounded_wait,
    "bounded-queues": _bounded_queues,
    "ledger-is-true": _ledger_is_true,
    "sessions-in-order": _sessions_in_order,
    **DISK_CHECKS,
    **PEER_CHECKS,
}
