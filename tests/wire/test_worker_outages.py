"""An engine that keeps serving while its worker is frozen, replaced or upgraded: what it costs, and what comes back.

The engine is never restarted here. Each request asks, loads or stores, as a scheduler would; none may raise.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

import pytest

from blockyard.common.messages import attach
from blockyard.engine.breaker import LONGEST_DELAY
from support.engine_side import EngineSide, key_of, pages, wait_until
from support.leader_process import wait_for
from support.serving import DETACHED, HIT, MISS, PAID, request
from support.worker_books import check_idle
from support.worker_process import WorkerProcess

KEYS = [key_of(1), key_of(2)]
MOST_PAID = 3
"""Requests that wait for a worker which does not answer: those of one answer's patience, and the one that notices."""

SECONDS_OF_PATIENCE = 30.0


@pytest.fixture
def worker() -> Iterator[WorkerProcess]:
    with WorkerProcess() as worker:
        yield worker


@pytest.fixture
def engine(worker: WorkerProcess) -> Iterator[EngineSide]:
    with EngineSide(worker.socket, verify="always") as engine:
        engine.wait_attached()
        assert request(engine, KEYS) == MISS
        worker.wait_metric("checksum_backlog", 0)
        assert request(engine, KEYS) == HIT
        yield engine


def serve_for(engine: EngineSide, seconds: float) -> Counter[str]:
    """Requests one after the other for a while."""
    met: Counter[str] = Counter()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        met[request(engine, KEYS)] += 1
    return met


def serve_until_hit(engine: EngineSide) -> Counter[str]:
    """Requests one after the other until one hits."""
    met: Counter[str] = Counter()
    deadline = time.monotonic() + SECONDS_OF_PATIENCE
    while not met[HIT]:
        assert time.monotonic() < deadline, met
        met[request(engine, KEYS)] += 1
    return met


def check_frozen(worker: WorkerProcess, engine: EngineSide, seconds: float) -> None:
    """Frozen so long: few requests pay, attempts are bounded, and what was stored is hit again."""
    before = sum(engine.scheduler.detachments.values())
    worker.freeze()
    met = serve_for(engine, seconds)
    worker.thaw()
    attempts = sum(engine.scheduler.detachments.values()) - before
    print(f"frozen for {seconds:g} s: {dict(met)}, {attempts} attempts")
    assert met[PAID] <= MOST_PAID
    assert met[DETACHED] > met[PAID]
    assert attempts <= seconds / LONGEST_DELAY + 5
    assert serve_until_hit(engine)[MISS] == 0, "the pool was kept"
    check_idle(worker)


def test_a_worker_frozen_for_seconds(worker: WorkerProcess, engine: EngineSide) -> None:
    check_frozen(worker, engine, 4.0)


@pytest.mark.long
@pytest.mark.timeout(240)
def test_a_worker_frozen_for_a_minute_and_then_again_and_again(worker: WorkerProcess, engine: EngineSide) -> None:
    check_frozen(worker, engine, 60.0)
    for _ in range(5):
        check_frozen(worker, engine, 3.0)


def successor(worker: WorkerProcess, **settings: str) -> WorkerProcess:
    """A worker that is started already and waits for the socket of this one, so it serves within 0.1 s of its end."""
    next_one = WorkerProcess(spawn_only=True, socket=str(worker.socket), **settings)
    next_one.spawn()
    wait_for(lambda: "waiting for its end" in next_one.log, SECONDS_OF_PATIENCE, "it waits", lambda: next_one.log)
    return next_one


@pytest.mark.parametrize("pool", ["16MiB", "1MiB"], ids=["same pool", "smaller pool"])
def test_a_worker_replaced_within_a_tenth_of_a_second(worker: WorkerProcess, engine: EngineSide, pool: str) -> None:
    old = engine.rank._map
    with successor(worker, host_pool=pool, slab_size="1MiB") as following:
        worker.kill()
        met = serve_until_hit(engine)
        following.wait_serving()
        assert met[MISS] > 0, "the new pool was empty"
        assert met[PAID] <= 2 * MOST_PAID
        mapped = engine.rank._map
        assert mapped is not None and mapped is not old
        assert len(mapped.pool) == following.metric("pool_bytes")
        check_idle(following)


def test_a_worker_whose_slabs_are_too_small_is_done_without_until_the_next() -> None:
    with WorkerProcess(host_pool="16MiB", slab_size="4MiB") as first:
        tensors = [pages(64, 1 << 16), pages(64, 1 << 16)]
        with EngineSide(first.socket, tensors, blocks_per_chunk=16, verify="always") as engine:
            engine.wait_attached()
            assert request(engine, KEYS) == MISS
            with successor(first, host_pool="8MiB", slab_size="1MiB") as small:
                first.kill()
                wait_until(lambda: engine.rank.detached_reason == "size", "refused for its size")
                assert "more than a slab of 1048576" in engine.rank.detached_detail
                assert serve_for(engine, 1.0).keys() == {DETACHED}
                with successor(small, host_pool="8MiB", slab_size="4MiB"):
                    small.kill()
                    assert serve_until_hit(engine)[MISS] > 0


def speaking(low: int, high: int) -> str:
    """What makes a worker speak other versions of the protocol, as a later release would."""
    return f"import blockyard.common.messages.attach as it; it.PROTOCOL_MIN, it.PROTOCOL_MAX = {low}, {high}"


def test_a_worker_upgraded_to_a_newer_protocol(worker: WorkerProcess, engine: EngineSide) -> None:
    """One that speaks only the newer version is done without, and named; one that speaks both is agreed with."""
    own, future = attach.PROTOCOL_MAX, attach.PROTOCOL_MAX + 1
    with successor(worker, program=speaking(future, future)) as newer:
        worker.kill()
        wait_until(lambda: engine.scheduler.detached_reason == engine.rank.detached_reason == "version", "refused")
        for client in (engine.scheduler, engine.rank):
            assert f"speaks protocol {attach.PROTOCOL_MIN} to {own}" in client.detached_detail
            assert f"speaks {future} to {future}" in client.detached_detail
        assert serve_for(engine, 1.0).keys() == {DETACHED}
        assert newer.metric("attaches_refused_total", reason="version") > 0
        with successor(newer, program=speaking(own, future)) as both:
            newer.kill()
            assert serve_until_hit(engine)[MISS] > 0
            assert both.metric("sessions", state="live") == 2
            check_idle(both)


def test_hints_reach_each_worker_that_takes_them(worker: WorkerProcess, engine: EngineSide) -> None:
    """One of the first release is served without; the next one is told what is still of use."""
    run, scheduler = engine.run(KEYS), engine.scheduler
    for name in ("q", "r"):
        scheduler.hint(attach.Hints(name, priority=70))
    assert scheduler.acquire("q", [run]) and scheduler.acquire("q", [run]) and scheduler.acquire("plain", [run])
    worker.wait_metric("hinted_requests", 1)
    assert worker.metric("hints_total", field="priority") == 1
    with successor(worker, program=speaking(1, 1)) as older:
        worker.kill()
        assert serve_until_hit(engine)[MISS] > 0
        assert scheduler.acquire("q", [run]) and scheduler.fill(99, "r", [run])
        assert serve_until_hit(engine)[HIT]
        assert older.metric("hints_total") == older.metric("frames_refused_total") == 0
        with successor(older) as newer:
            older.kill()
            assert serve_until_hit(engine)[MISS] > 0
            assert scheduler.fill(100, "r", [run])
            newer.wait_metric("hinted_requests", 1)
            scheduler.unhint("q")
            scheduler.unhint("r")
            newer.wait_metric("hinted_requests", 0)
            assert newer.metric("hints_total", field="priority") == 1
