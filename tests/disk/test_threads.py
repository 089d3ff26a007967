"""The I/O threads: classes, bounds, deadlines, and operations that hang. Time is told to them; no test measures it."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from blockyard.worker.disk.threads import Expired, IoClass, IoThreads, Limits

LIMITS = Limits(threads=3, reserved=1, queue=(4, 4, 4, 4), hung_after=10.0, most_hung=2)
FOREVER = 1e9


class Time:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Gate:
    """Operations that wait until they are let go on, and what came of them."""

    def __init__(self, threads: IoThreads) -> None:
        self._threads = threads
        self._open = threading.Event()
        self._changed = threading.Condition()
        self.begun: list[str] = []
        self.answers: dict[str, object] = {}

    def submit(self, name: str, kind: IoClass = IoClass.DEMAND, deadline: float = FOREVER) -> bool:
        return (
            self._threads.submit(kind, lambda: self._work(name), lambda it: self._answer(name, it), deadline)
            is not None
        )

    def open(self) -> None:
        self._open.set()

    def wait_begun(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.begun) >= count, timeout=30)

    def wait_answers(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.answers) >= count, timeout=30)

    def _work(self, name: str) -> str:
        with self._changed:
            self.begun.append(name)
            self._changed.notify_all()
        self._open.wait()
        return f"{name} done"

    def _answer(self, name: str, result: object) -> None:
        with self._changed:
            assert name not in self.answers, "answered once"
            self.answers[name] = result
            self._changed.notify_all()


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def threads(time: Time) -> Iterator[IoThreads]:
    made = IoThreads("disk-test", LIMITS, time)
    yield made
    made.stop(30.0)


@pytest.fixture
def gate(threads: IoThreads) -> Iterator[Gate]:
    made = Gate(threads)
    yield made
    made.open()


def test_results_and_errors_are_answers(threads: IoThreads) -> None:
    answers: list[object] = []
    done = threading.Semaphore(0)

    def answer(result: object) -> None:
        answers.append(result)
        done.release()

    assert threads.submit(IoClass.SPILL, lambda: 7, answer, FOREVER)
    assert done.acquire(timeout=30)
    assert threads.submit(IoClass.SPILL, lambda: 1 // 0, answer, FOREVER)
    assert done.acquire(timeout=30)
    assert answers[0] == 7
    assert isinstance(answers[1], ZeroDivisionError)


def test_a_thread_is_kept_for_demand(threads: IoThreads, gate: Gate) -> None:
    for number in range(4):
        assert gate.submit(f"spill {number}", IoClass.SPILL)
    gate.wait_begun(2)
    assert gate.submit("demand")
    gate.wait_begun(3)
    assert gate.begun[2] == "demand"
    assert threads.load().running == 3
    gate.open()
    gate.wait_answers(5)


def test_higher_classes_are_begun_first(threads: IoThreads, gate: Gate) -> None:
    for number in range(3):
        assert gate.submit(f"first {number}")
    gate.wait_begun(3)
    for name, kind in (("upkeep", IoClass.UPKEEP), ("spill", IoClass.SPILL), ("prefetch", IoClass.PREFETCH)):
        assert gate.submit(name, kind)
    assert gate.submit("demand")
    gate.open()
    gate.wait_answers(7)
    assert gate.begun[3] == "demand"


def test_a_full_queue_refuses_its_class_alone(threads: IoThreads, gate: Gate) -> None:
    for number in range(3):
        assert gate.submit(f"running {number}")
    gate.wait_begun(3)
    assert [gate.submit(f"spill {number}", IoClass.SPILL) for number in range(6)] == [True] * 4 + [False] * 2
    assert gate.submit("demand")
    load = threads.load()
    assert (load.waiting, load.refused) == ((1, 0, 4, 0), (0, 0, 2, 0))


def test_what_waits_beyond_its_deadline_is_answered_without_being_begun(
    threads: IoThreads, gate: Gate, time: Time
) -> None:
    for number in range(3):
        assert gate.submit(f"running {number}")
    gate.wait_begun(3)
    assert gate.submit("late", deadline=5.0)
    assert gate.submit("in time", deadline=50.0)
    time.now = 6.0
    threads.expire()
    assert isinstance(gate.answers["late"], Expired)
    time.now = 60.0
    gate.open()
    gate.wait_answers(5)
    assert isinstance(gate.answers["in time"], Expired), "a thread looks at the deadline too"
    assert len(gate.begun) == 3


def test_what_was_cancelled_is_not_begun(threads: IoThreads, gate: Gate) -> None:
    for number in range(3):
        assert gate.submit(f"running {number}")
    gate.wait_begun(3)
    answers: list[object] = []
    ticket = threads.submit(IoClass.DEMAND, lambda: "done", answers.append, FOREVER)
    assert ticket is not None
    ticket.cancel()
    threads.expire()
    assert [type(answer) for answer in answers] == [Expired]


def test_what_hangs_is_counted_replaced_and_capped(threads: IoThreads, gate: Gate, time: Time) -> None:
    for number in range(3):
        assert gate.submit(f"hung {number}")
    gate.wait_begun(3)
    time.now = 11.0
    load = threads.load()
    assert (load.hung, load.hung_ever) == (3, 3)
    for number in range(2):
        assert gate.submit(f"next {number}")
    gate.wait_begun(5)
    time.now = 22.0
    assert threads.load().hung == 5
    assert not gate.submit("no thread is left for it")
    gate.open()
    gate.wait_answers(5)
    load = threads.load()
    assert (load.running, load.hung, load.hung_ever) == (0, 0, 5)
    assert gate.submit("after")
    gate.wait_answers(6)


def test_hung_spills_leave_demand_its_threads(threads: IoThreads, gate: Gate, time: Time) -> None:
    for number in range(4):
        assert gate.submit(f"spill {number}", IoClass.SPILL)
    gate.wait_begun(2)
    time.now = 11.0
    threads.load()
    gate.wait_begun(4)
    time.now = 22.0
    threads.load()
    assert gate.submit("demand")
    gate.wait_begun(5)
    assert gate.begun[4] == "demand"


def test_stopping_answers_what_waits_and_says_who_stays(time: Time) -> None:
    threads = IoThreads("disk-test", LIMITS, time)
    gate = Gate(threads)
    for number in range(4):
        assert gate.submit(f"job {number}")
    gate.wait_begun(3)
    assert not threads.stop(0.0), "three are still at work"
    assert isinstance(gate.answers["job 3"], Expired)
    assert not gate.submit("too late")
    gate.open()
    gate.wait_answers(4)
    assert threads.stop(30.0)
