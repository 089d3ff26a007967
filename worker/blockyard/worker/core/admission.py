"""Whether a new session may come in. Owns the conditions and the words for a refusal; changes nothing."""

from typing import NamedTuple

from blockyard.common.messages.attach import PROTOCOL_MAX, PROTOCOL_MIN, Hello
from blockyard.common.slot_table import align_page
from blockyard.worker.core.sessions import Engine, SessionBook
from blockyard.worker.core.settings import CoreSettings
from blockyard.worker.core.slots import slot_bytes
from blockyard.worker.core.worlds import World, shapes_of


class Refusal(NamedTuple):
    """`code` is one of version, size, shape, ranks, busy, fingerprint, draining; `detail` is one line for
    people.
    """

    code: str
    detail: str


def version_fault(hello: Hello, version: str) -> Refusal | None:
    """Refused when the ranges of protocol versions do not meet."""
    if max(hello.protocol_min, PROTOCOL_MIN) <= min(hello.protocol_max, PROTOCOL_MAX):
        return None
    return Refusal(
        "version",
        f"engine {hello.version} speaks protocol {hello.protocol_min} to {hello.protocol_max}, "
        f"worker {version} speaks {PROTOCOL_MIN} to {PROTOCOL_MAX}",
    )


def place_fault(hello: Hello, book: SessionBook, settings: CoreSettings) -> Refusal | None:
    """Refused when there is no place for one more session, or its place is taken."""
    if len(book) >= settings.max_sessions:
        return Refusal("busy", f"{len(book)} sessions are attached, the limit is {settings.max_sessions}")
    engine = book.engines.get(hello.engine)
    if hello.role == "rank":
        taken = engine is not None and hello.rank in engine.ranks
    else:
        taken = book.waiting_for(hello.engine) is not None or (engine is not None and engine.scheduler is not None)
    if taken:
        who = f"rank {hello.rank}" if hello.role == "rank" else "the scheduler"
        return Refusal("busy", f"{who} of engine {hello.engine} is already attached and has not been named")
    return None


def rank_fault(hello: Hello, engine: Engine | None, world: World | None, settings: CoreSettings) -> Refusal | None:
    """Refused when a rank's geometry cannot be served, or differs from what is known of its engine or
    world.
    """
    if hello.rank >= hello.local_ranks:
        return Refusal("ranks", f"rank is {hello.rank}, must be below the number of local ranks, {hello.local_ranks}")
    shapes = shapes_of(hello.groups)
    if len({group for group, _, _ in shapes}) != len(shapes):
        return Refusal("shape", "a KV cache group is named twice")
    for group, _, area_bytes in shapes:
        fault = _area_fault(group, area_bytes, hello.local_ranks, settings)
        if fault is not None:
            return fault
    if engine is not None and engine.world.fingerprint != hello.fingerprint:
        return _other_fingerprint(hello, engine)
    if engine is not None and engine.local_ranks != hello.local_ranks:
        return Refusal(
            "ranks",
            f"rank {hello.rank} says {hello.local_ranks} local ranks, the engine has {engine.local_ranks}",
        )
    settled = world is not None and not world.provisional
    if world is not None and settled and (world.areas, world.shapes) != (hello.local_ranks, shapes):
        return Refusal(
            "shape",
            f"(group, tokens per chunk, bytes per rank) is {shapes} for {hello.local_ranks} ranks; "
            f"this fingerprint already has {world.shapes} for {world.areas}",
        )
    return None


def scheduler_fault(hello: Hello, engine: Engine) -> Refusal | None:
    """Refused when a scheduler does not fit the ranks of its engine. Precondition: they are all attached."""
    if engine.world.fingerprint != hello.fingerprint:
        return _other_fingerprint(hello, engine)
    if engine.local_ranks != hello.local_ranks:
        return Refusal(
            "ranks",
            f"the scheduler says {hello.local_ranks} local ranks, its ranks say {engine.local_ranks}",
        )
    own = [(group, tokens) for group, tokens, _ in shapes_of(hello.groups)]
    ranks = [(group, tokens) for group, tokens, _ in engine.world.shapes]
    if own != ranks:
        return Refusal("shape", f"(group, tokens per chunk) is {own} at the scheduler, {ranks} at its ranks")
    return None


def _area_fault(group: int, area_bytes: int, areas: int, settings: CoreSettings) -> Refusal | None:
    if not area_bytes:
        return Refusal("shape", f"group {group} has 0 bytes per rank and chunk, must be at least 1")
    size = slot_bytes(settings, area_bytes, areas)
    if size <= settings.slab_bytes:
        return None
    return Refusal(
        "size",
        f"group {group}: {areas} ranks x {align_page(area_bytes)} bytes ({area_bytes} in whole pages) "
        f"= slot of {size} bytes, more than a slab of {settings.slab_bytes}",
    )


def _other_fingerprint(hello: Hello, engine: Engine) -> Refusal:
    return Refusal(
        "fingerprint",
        f"{hello.role} has fingerprint {hello.fingerprint.hex()[:16]}…, "
        f"its engine {hello.engine} has {engine.world.fingerprint.hex()[:16]}…",
    )
