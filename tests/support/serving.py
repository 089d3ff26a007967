"""Requests that a serving engine makes, whatever becomes of its worker: none may raise, and none may bring wrong bytes.

Owns what a request meets, in four words; what of it is right is for the test to say.
"""

from __future__ import annotations

import time

from blockyard.common.messages.states import CopyState, KeyState
from blockyard.engine.detached import Detached
from support.engine_side import EngineSide

ACQUIRE_DEADLINE = 0.5
REST = 0.01

HIT, MISS, DETACHED, PAID = "hit", "miss", "detached", "paid"


def request(engine: EngineSide, keys: list[bytes]) -> str:
    """One request and what it met: HIT (right bytes), MISS (stored), DETACHED (cost nothing), PAID (waited in vain)."""
    time.sleep(REST)
    engine.scheduler.flush()
    seq = engine.scheduler.acquire("request", [engine.run(keys)])
    if seq is None:
        return DETACHED
    try:
        grant = engine.scheduler.grant(seq, ACQUIRE_DEADLINE)
    except Detached:
        return PAID
    if grant is None:
        engine.scheduler.abandon(seq)
        return PAID
    if set(grant.states) == {KeyState.HIT}:
        return _load(engine, keys, grant.number)
    for index, key in enumerate(keys):
        engine.write(index, key)
    engine.store(keys)
    engine.scheduler.finish("request")
    return MISS


def _load(engine: EngineSide, keys: list[bytes], grant: int) -> str:
    engine.zero()
    engine.submit_load(keys, [engine.chunk(index) for index in range(len(keys))], grant)
    result = engine.result()
    engine.scheduler.finish("request")
    assert all(engine.holds(at, keys[at]) for at, state in enumerate(result.states) if state is CopyState.OK)
    return HIT if result.ok else PAID
