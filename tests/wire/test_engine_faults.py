"""What an engine goes through when its worker is absent, dies, freezes or closes. It never raises and never
waits long.
"""

import os
import time
from collections.abc import Iterator

import pytest

from blockyard.common.messages.states import CopyState, KeyState
from blockyard.engine.detached import Detached
from blockyard.engine.jobs import CopyJob
from support.engine_side import EngineSide, key_of, states, wait_until
from support.worker_process import WorkerProcess

KEYS = [key_of(1), key_of(2)]


@pytest.fixture
def worker() -> Iterator[WorkerProcess]:
    with WorkerProcess() as worker:
        yield worker


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def mapped_pools() -> int:
    """Mappings of a worker's memory in this process."""
    with open("/proc/self/maps") as maps:
        return sum("memfd:" in line for line in maps)


def test_a_worker_that_comes_later() -> None:
    with WorkerProcess() as worker:
        worker.terminate()
        with EngineSide(worker.socket) as engine:
            wait_until(lambda: engine.scheduler.detachments and engine.rank.detachments, "attempts")
            assert engine.rank.detached_reason == engine.scheduler.detached_reason == "no-worker"
            assert engine.scheduler.acquire("request", [engine.run(KEYS)]) is None
            assert not engine.scheduler.fill(1, "request", [engine.run(KEYS)])
            assert engine.store(KEYS).states == [CopyState.DETACHED] * 2
            worker.start()
            engine.wait_attached()
            assert engine.store(KEYS).ok


def test_a_worker_killed_under_an_idle_engine(worker: WorkerProcess) -> None:
    """Nobody calls the clients here: the death, the new start and the new pool are found in the background."""
    with EngineSide(worker.socket) as engine:
        engine.wait_attached().store(KEYS)
        grant = engine.ask_until_hit(KEYS)
        old = engine.rank._map
        descriptors, pools = open_descriptors(), mapped_pools()
        worker.kill()
        engine.wait_detached()
        assert mapped_pools() == 0, "the dead worker's pool is not held"
        worker.start()
        engine.wait_attached()
        assert engine.rank._map is not old
        assert mapped_pools() == pools
        assert open_descriptors() == descriptors
        engine.scheduler.release(grant)  # Of the dead worker: must not touch a grant of the new one.
        assert states(engine.ask(KEYS)) == [KeyState.NEVER_STORED] * 2, "a new pool is empty"
        assert engine.store(KEYS).ok
        engine.zero()
        assert engine.load(KEYS).ok


def test_a_worker_killed_under_questions_and_copies(worker: WorkerProcess) -> None:
    with EngineSide(worker.socket) as engine:
        engine.wait_attached().store(KEYS)
        worker.freeze()
        seq = engine.scheduler.acquire("request", [engine.run(KEYS)])
        jobs = [engine.submit_store([key_of(9)], [engine.chunk(0)]) for _ in range(3)]
        worker.kill()
        assert seq is not None
        with pytest.raises(Detached):
            wait_until(lambda: engine.scheduler.grant(seq, 0.05), "never")
        ended: dict[int, list[CopyState]] = {}
        wait_until(
            lambda: ended.update({r.job: r.states for r in engine.rank.finished()}) or len(ended) == 3,
            "every job has ended",
        )
        assert ended == {job: [CopyState.DETACHED] for job in jobs}
        worker.start()
        engine.wait_attached()
        assert engine.store(KEYS).ok


def test_a_frozen_worker_opens_the_breaker_and_hits_come_back(worker: WorkerProcess) -> None:
    with EngineSide(worker.socket) as engine:
        engine.wait_attached().store(KEYS)
        engine.ask_until_hit(KEYS)
        worker.freeze()
        seq = engine.scheduler.acquire("request", [engine.run(KEYS)])
        assert seq is not None
        with pytest.raises(Detached) as caught:
            wait_until(lambda: engine.scheduler.grant(seq, 0.02), "never")
        assert caught.value.reason.word == "timeout"
        assert engine.scheduler.detachments["timeout"] == 1
        engine.submit_load(KEYS, [engine.chunk(0), engine.chunk(1)], 1)
        assert engine.result().states == [CopyState.DETACHED] * 2
        begun = time.process_time()
        for _ in range(1000):
            assert engine.scheduler.acquire("request", [engine.run(KEYS)]) is None
            engine.scheduler.finish("request")
            engine.scheduler.flush()
        print(f"3000 calls while detached: {time.process_time() - begun:.4f} s of CPU")
        worker.thaw()
        engine.wait_attached()
        engine.zero()
        assert engine.load(KEYS).ok


def test_a_worker_that_closes_in_good_order(worker: WorkerProcess) -> None:
    with EngineSide(worker.socket) as engine:
        engine.wait_attached().store(KEYS)
        assert worker.terminate() == 0
        engine.wait_detached()
        assert engine.scheduler.detached_reason == engine.rank.detached_reason == "no-worker"


def test_a_refused_engine_stays_detached_and_says_why(worker: WorkerProcess) -> None:
    with EngineSide(worker.socket, blocks_per_chunk=1024) as engine:
        wait_until(lambda: engine.rank.detached_reason == "size", "refused for its size")
        assert "1048576" in engine.rank.detached_detail, "the worker's arithmetic is passed on"
        assert engine.store(KEYS[:1]).states == [CopyState.DETACHED]


def test_sessions_leave_nothing_behind(worker: WorkerProcess) -> None:
    with EngineSide(worker.socket) as engine:
        engine.wait_attached().store(KEYS)
    descriptors = open_descriptors()
    for _ in range(5):
        with EngineSide(worker.socket) as engine:
            engine.wait_attached().load(KEYS)
    assert open_descriptors() == descriptors
    assert mapped_pools() == 0


def test_forget_reaches_a_worker_that_was_frozen_meanwhile(worker: WorkerProcess) -> None:
    with EngineSide(worker.socket) as engine:
        engine.wait_attached().store(KEYS)
        worker.freeze()
        seq = engine.scheduler.acquire("request", [engine.run(KEYS)])
        assert seq is not None
        with pytest.raises(Detached):
            wait_until(lambda: engine.scheduler.grant(seq, 0.05), "never")
        engine.scheduler.forget("weights were updated while nobody listened")
        worker.thaw()
        engine.wait_attached()
        assert KeyState.HIT not in states(engine.ask(KEYS))
        assert engine.store(KEYS).ok
        engine.ask_until_hit(KEYS)


def test_a_store_is_lost_when_its_end_cannot_be_told(worker: WorkerProcess) -> None:
    with EngineSide(worker.socket) as engine:
        engine.wait_attached()
        engine.scheduler.fill(1, "request", [engine.run(KEYS)])
        engine.ask([key_of(5)])
        copier = engine.rank._copier
        store, killed = copier.store, []

        def store_and_kill(*arguments: object) -> int:
            size = store(*arguments)  # type: ignore[arg-type]
            if not killed:
                killed.append(worker.kill())
            return size

        copier.store = store_and_kill  # type: ignore[method-assign]
        engine.rank.submit(CopyJob(1, "store", KEYS, [engine.chunk(0), engine.chunk(1)]))
        assert engine.result().states == [CopyState.DETACHED] * 2


def test_memory_that_cannot_be_used_at_once_is_asked_for_again(worker: WorkerProcess) -> None:
    engine = EngineSide(worker.socket)
    copier = engine.rank._copier
    bind, refusals = copier.bind, []

    def bind_later(pool: memoryview) -> None:
        if not refusals:
            refusals.append("no thread can be started now")
            raise RuntimeError(refusals[0])
        bind(pool)

    copier.bind = bind_later  # type: ignore[method-assign]
    with engine:
        engine.wait_attached()
        assert refusals
        assert engine.rank.detachments["layout"] == 1
        assert engine.store(KEYS).ok


def test_no_job_waits_for_a_copy_thread_that_failed_to_let_go(worker: WorkerProcess) -> None:
    with EngineSide(worker.socket) as engine:
        engine.wait_attached().store(KEYS)
        copier = engine.rank._copier
        unbind, refusals = copier.unbind, []

        def unbind_later() -> None:
            if not refusals:
                refusals.append("the pool is still looked at")
                raise BufferError(refusals[0])
            unbind()

        copier.unbind = unbind_later  # type: ignore[method-assign]
        worker.freeze()
        job = engine.submit_load(KEYS, [engine.chunk(0), engine.chunk(1)], 1)
        assert engine.result().states == [CopyState.DETACHED] * 2
        assert refusals
        assert engine.rank.wait({job}, 0.0)
        worker.thaw()
        engine.wait_attached()
        assert engine.store([key_of(7)]).ok
