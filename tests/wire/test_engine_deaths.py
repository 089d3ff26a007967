"""SIGKILL of an engine's rank or scheduler, and of the worker, at each point of a store and of a load.

Whatever dies where: nobody is given wrong bytes, no slot stays held, and the pins of the dead are gone.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from blockyard.common.messages.states import CopyState, KeyState
from blockyard.common.slot_table import SlotState
from blockyard.engine.detached import Detached
from blockyard.engine.jobs import CopyJob
from blockyard.engine.light.stalling import StallingCopier
from support.dying_engine import Dying
from support.engine_side import PATIENCE, EngineSide, key_of, states, wait_until
from support.protocol_points import ATTACHING, ATTACHING_RANK, IN_A_JOB, LOAD_OF_SCHEDULER, STORE_OF_SCHEDULER, arm
from support.worker_books import check_idle, slots_by_key
from support.worker_process import WorkerProcess

NUMBERS = [1, 2, 3]
KEYS = [key_of(number) for number in NUMBERS]
OTHERS = [key_of(number) for number in (11, 12, 13)]
VICTIM = "victim"


@pytest.fixture
def worker() -> Iterator[WorkerProcess]:
    with WorkerProcess(host_pool="2MiB", slab_size="1MiB", fill_deadline="10m", pin_ttl="10m") as worker:
        yield worker


@pytest.fixture
def honest(worker: WorkerProcess) -> Iterator[EngineSide]:
    """An engine of the same world whose chunks are there before anyone dies."""
    with EngineSide(worker.socket, name="honest") as engine:
        engine.wait_attached()
        store(engine, OTHERS)
        yield engine


def store(engine: EngineSide, keys: list[bytes]) -> list[CopyState]:
    for index, key in enumerate(keys):
        engine.write(index, key)
    return engine.store(keys).states


def check_bytes(engine: EngineSide, keys: list[bytes]) -> None:
    """What is a hit comes back right."""
    engine.zero()
    assert engine.load(keys).ok
    assert all(engine.holds(index, key) for index, key in enumerate(keys))


def check_after(worker: WorkerProcess, honest: EngineSide) -> None:
    """The dead left nothing, and whoever comes next stores and loads the same keys."""
    check_idle(worker)
    assert worker.get("/debug/invariants") == (200, '{"broken": null}')
    found = states(honest.ask(KEYS))
    assert set(found) <= {KeyState.HIT, KeyState.NEVER_STORED}
    honest.scheduler.finish("request")
    assert set(store(honest, KEYS)) <= {CopyState.OK, CopyState.DUPLICATE}
    check_bytes(honest, KEYS)
    store(honest, OTHERS)
    check_bytes(honest, OTHERS)
    assert not honest.rank.detachments and not honest.scheduler.detachments
    check_idle(worker)


@pytest.mark.parametrize("point", ATTACHING_RANK)
def test_a_rank_dies_while_it_attaches(worker: WorkerProcess, honest: EngineSide, point: str) -> None:
    with Dying(worker.socket, VICTIM, "rank", point) as rank:
        rank.wait_at()
        rank.kill()
        worker.wait_metric("sessions", 2)
        check_after(worker, honest)


@pytest.mark.parametrize("point", ATTACHING)
def test_a_scheduler_dies_while_it_attaches(worker: WorkerProcess, honest: EngineSide, point: str) -> None:
    with EngineSide(worker.socket, name=VICTIM, with_scheduler=False) as victim:
        wait_until(lambda: victim.rank.state == "attached", "the rank is attached")
        with Dying(worker.socket, VICTIM, "scheduler", point) as scheduler:
            scheduler.wait_at()
            scheduler.kill()
            worker.wait_metric("sessions", 3)
            check_after(worker, honest)


@pytest.mark.parametrize("point", IN_A_JOB)
def test_a_rank_dies_in_a_store(worker: WorkerProcess, honest: EngineSide, point: str) -> None:
    with (
        Dying(worker.socket, VICTIM, "rank", point) as rank,
        EngineSide(worker.socket, name=VICTIM, with_rank=False) as victim,
    ):
        assert rank.hear() == "attached"
        wait_until(lambda: victim.scheduler.state == "attached", "the scheduler is attached")
        victim.scheduler.fill(1, "request", [victim.run(KEYS)])
        victim.ask([key_of(99)])
        rank.order("store", 1, 0, NUMBERS)
        rank.wait_at()
        committed = point == "done sent"
        if not committed:
            assert worker.metric("slots", state="filling") == len(KEYS)
            assert KeyState.HIT not in states(honest.ask(KEYS)), "half a chunk is nobody's"
        rank.kill()
        worker.wait_metric("sessions", 3)
        victim.scheduler.close()
        worker.wait_metric("fills_in_flight", 0)
        if committed:
            check_bytes(honest, KEYS)
        check_after(worker, honest)


@pytest.mark.parametrize("point", IN_A_JOB)
def test_a_rank_dies_in_a_load(worker: WorkerProcess, honest: EngineSide, point: str) -> None:
    store(honest, KEYS)
    before = slots_by_key(worker, SlotState.READY)
    with (
        Dying(worker.socket, VICTIM, "rank", point) as rank,
        EngineSide(worker.socket, name=VICTIM, with_rank=False) as victim,
    ):
        assert rank.hear() == "attached"
        wait_until(lambda: victim.scheduler.state == "attached", "the scheduler is attached")
        grant = victim.ask_until_hit(KEYS)
        rank.order("load", 1, grant.number, NUMBERS)
        rank.wait_at()
        rank.kill()
        worker.wait_metric("sessions", 3)
        worker.wait_metric("loads_in_flight", 0)
        assert worker.metric("pins") == len(KEYS), "they are its scheduler's, which lives"
        victim.scheduler.release(grant)
        worker.wait_metric("pins", 0)
        assert slots_by_key(worker, SlotState.READY) == before, "a load that ended badly changes nothing"
        check_after(worker, honest)


@pytest.mark.parametrize("point", STORE_OF_SCHEDULER)
def test_a_scheduler_dies_in_a_store(worker: WorkerProcess, honest: EngineSide, point: str) -> None:
    with (
        EngineSide(worker.socket, name=VICTIM, with_scheduler=False) as victim,
        Dying(worker.socket, VICTIM, "scheduler", point) as scheduler,
    ):
        assert scheduler.hear() == "attached"
        scheduler.order("fill", 1, NUMBERS)
        scheduler.wait_at()
        if point == "fill sent":
            worker.wait_metric("slots", len(KEYS), state="filling")
        scheduler.kill()
        worker.wait_metric("sessions", 3)
        victim.rank.submit(CopyJob(1, "store", KEYS, [victim.chunk(index) for index in range(len(KEYS))]))
        assert CopyState.OK not in victim.result().states
        check_after(worker, honest)


@pytest.mark.parametrize("point", LOAD_OF_SCHEDULER)
def test_a_scheduler_dies_in_a_load(worker: WorkerProcess, honest: EngineSide, point: str) -> None:
    store(honest, KEYS)
    with (
        EngineSide(worker.socket, name=VICTIM, with_scheduler=False) as victim,
        Dying(worker.socket, VICTIM, "scheduler", point) as scheduler,
    ):
        assert scheduler.hear() == "attached"
        scheduler.order("acquire", 0, NUMBERS)
        if point in ("before release", "release sent"):
            scheduler.hear()
            scheduler.order("release", 0, NUMBERS)
        scheduler.wait_at()
        scheduler.kill()
        worker.wait_metric("pins", 0)
        worker.wait_metric("sessions", 3)
        check_after(worker, honest)
        assert victim.rank.state == "attached"


def test_pins_of_the_dead_hold_their_slots_until_the_rank_is_gone(worker: WorkerProcess, honest: EngineSide) -> None:
    """The scheduler dies under a rank that still loads: what it reads is not reused, whatever else is stored."""
    store(honest, KEYS)
    before = slots_by_key(worker, SlotState.READY)
    with (
        Dying(worker.socket, VICTIM, "rank", "in the copy") as rank,
        Dying(worker.socket, VICTIM, "scheduler", "before release") as scheduler,
    ):
        assert rank.hear() == scheduler.hear() == "attached"
        scheduler.order("acquire", 0, NUMBERS)
        rank.order("load", 1, int(scheduler.hear()), NUMBERS)
        rank.wait_at()
        scheduler.kill()
        worker.wait_metric("sessions", 3)
        worker.wait_metric("pins", 0)
        for number in range(100, 200):  # more than the pool holds
            store(honest, [key_of(number)])
        assert worker.metric("evictions_total") > 0
        kept = slots_by_key(worker, SlotState.READY)
        assert {key: kept[key] for key in KEYS} == {key: before[key] for key in KEYS}
        rank.kill()
        worker.wait_metric("loads_in_flight", 0)
        for number in range(200, 300):
            store(honest, [key_of(number)])
        assert not slots_by_key(worker, SlotState.READY).keys() & set(KEYS), "now they may go"
        check_idle(worker)


def test_a_scheduler_dies_under_a_rank_that_stores(worker: WorkerProcess, honest: EngineSide) -> None:
    """Slots of a store whose scheduler is gone are not given away while the rank still writes to them."""
    with (
        EngineSide(worker.socket, name=VICTIM, with_scheduler=False, copier=StallingCopier) as victim,
        Dying(worker.socket, VICTIM, "scheduler", "before release") as scheduler,
    ):
        assert isinstance(victim.copier, StallingCopier)
        victim.copier.stall_after = 1
        assert scheduler.hear() == "attached"
        scheduler.order("fill", 1, NUMBERS)
        scheduler.hear()
        victim.rank.submit(CopyJob(1, "store", KEYS, [victim.chunk(index) for index in range(len(KEYS))]))
        wait_until(victim.copier.stalled.is_set, "the store is half done")
        scheduler.kill()
        worker.wait_metric("slots", len(KEYS), state="doomed")
        for number in range(100, 200):
            store(honest, [key_of(number)])
        assert worker.metric("slots", state="doomed") == len(KEYS)
        victim.copier.resume.set()
        victim.result()
        worker.wait_metric("slots", 0, state="doomed")
        check_after(worker, honest)


# The worker dies; whatever the engine is about to do, it ends, and goes on with the next worker.


@pytest.mark.parametrize("point", [*ATTACHING_RANK, *IN_A_JOB, *STORE_OF_SCHEDULER])
def test_the_worker_dies_in_a_store(worker: WorkerProcess, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    dead = death_at(point, worker, monkeypatch)
    with EngineSide(worker.socket) as engine:
        if point not in ATTACHING_RANK:
            engine.wait_attached()
            for index, key in enumerate(KEYS):
                engine.write(index, key)
            engine.scheduler.fill(1, "request", [engine.run(KEYS)])
            engine.rank.submit(CopyJob(1, "store", KEYS, [engine.chunk(index) for index in range(len(KEYS))]))
            assert_ended(engine.result().states, point == "done sent")
        assert dead.wait(PATIENCE)
        goes_on(worker, engine)


@pytest.mark.parametrize("point", [*IN_A_JOB, *LOAD_OF_SCHEDULER])
def test_the_worker_dies_in_a_load(worker: WorkerProcess, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    with EngineSide(worker.socket, verify="always") as engine:
        engine.wait_attached()
        store(engine, KEYS)
        worker.wait_metric("checksum_backlog", 0)
        dead = death_at(point, worker, monkeypatch)
        engine.zero()
        grant = _ask(engine)
        if grant is not None:
            engine.submit_load(KEYS, [engine.chunk(index) for index in range(len(KEYS))], grant.number)
            result = engine.result()
            # The pool outlives its worker while it is mapped, so a copy that ended well is right.
            right = [engine.holds(index, key) for index, key in enumerate(KEYS)]
            assert all(right[at] for at, state in enumerate(result.states) if state is CopyState.OK)
            engine.scheduler.release(grant)
        assert dead.wait(PATIENCE)
        goes_on(worker, engine)


def death_at(point: str, worker: WorkerProcess, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Kill the worker when this process comes to a point; the event says that it is dead."""
    dead = threading.Event()

    def die() -> None:
        worker.kill()
        dead.set()

    arm(point, die, monkeypatch.setattr)
    return dead


def _ask(engine: EngineSide) -> Any:
    try:
        return engine.ask(KEYS)
    except (Detached, AssertionError):
        return None


def assert_ended(found: list[CopyState], told: bool) -> None:
    """A store counts only if the worker may have been told of it."""
    assert len(found) == len(KEYS)
    assert told or CopyState.OK not in found


def goes_on(worker: WorkerProcess, engine: EngineSide) -> None:
    """The next worker is found without the engine's doing, is empty, and serves."""
    worker.start()
    engine.wait_attached()
    assert states(engine.ask(KEYS)) == [KeyState.NEVER_STORED] * len(KEYS)
    store(engine, KEYS)
    check_bytes(engine, KEYS)
    check_idle(worker)
