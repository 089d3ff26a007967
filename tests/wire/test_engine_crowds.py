"""Many at once: requests beyond the pins allowed, requests on one new prefix, engines that start together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from blockyard.common.messages.states import CopyState, KeyState
from support.engine_side import EngineSide, key_of, pages, wait_until
from support.light_process import LightProcess
from support.worker_books import check_idle
from support.worker_process import WorkerProcess

CAP = 64
WAITING = 1000
STORED = 120
PER_REQUEST = 6


def ask_all(engine: EngineSide, requests: range) -> dict[int, bytes]:
    """Every request asks at once, for chunks that overlap with its neighbours'; the states that each was answered."""
    asked = {
        number: engine.scheduler.acquire(f"r{number}", [engine.run(keys_of_request(number))]) for number in requests
    }
    found: dict[int, bytes] = {}

    def all_answered() -> bool:
        for number, seq in asked.items():
            assert seq is not None
            if number not in found and (grant := engine.scheduler.grant(seq)) is not None:
                found[number] = grant.states
        return len(found) == len(asked)

    wait_until(all_answered, "every answer")
    return found


def keys_of_request(number: int) -> list[bytes]:
    return [key_of(1 + (number + step) % STORED) for step in range(PER_REQUEST)]


def test_a_thousand_waiting_requests_pin_no_more_than_the_cap_and_each_has_its_turn() -> None:
    tensors = [pages(4 * STORED, 256), pages(4 * STORED, 256)]
    with WorkerProcess(max_pins_per_engine=str(CAP)) as worker, EngineSide(worker.socket, tensors) as engine:
        engine.wait_attached()
        stored = [key_of(1 + number) for number in range(STORED)]
        for index, key in enumerate(stored):
            engine.write(index, key)
        assert engine.store(stored).ok

        answers = ask_all(engine, range(WAITING))
        states = Counter(state for answer in answers.values() for state in answer)
        assert states.keys() == {KeyState.HIT, KeyState.PIN_BUDGET}
        assert states[KeyState.HIT] == worker.metric("pins") == CAP
        assert states.total() == WAITING * PER_REQUEST

        # In the order of the queue: whoever is done makes room for the next.
        engine.zero()
        for number in range(WAITING):
            engine.scheduler.finish(f"r{number}")
        for number in range(WAITING):
            seq = engine.scheduler.acquire(f"r{number}", [engine.run(keys_of_request(number))])
            assert seq is not None
            grant = engine.scheduler.grant(seq, 10.0)
            assert grant is not None and set(grant.states) == {KeyState.HIT}
            if number < STORED:
                engine.submit_load(keys_of_request(number)[:1], [engine.chunk(number)], grant.number)
                assert engine.result().ok
            engine.scheduler.finish(f"r{number}")
        assert all(engine.holds(index, key) for index, key in enumerate(stored))
        check_idle(worker)


@pytest.fixture
def pair() -> Iterator[tuple[WorkerProcess, EngineSide, EngineSide]]:
    """Two engines of one world, with rank clients that verify."""
    with (
        WorkerProcess() as worker,
        EngineSide(worker.socket, verify="always") as first,
        EngineSide(worker.socket, verify="always") as second,
    ):
        yield worker, first.wait_attached(), second.wait_attached()


def test_fifty_requests_on_one_new_prefix_are_one_store_and_all_are_served(
    pair: tuple[WorkerProcess, EngineSide, EngineSide],
) -> None:
    worker, first, second = pair
    prefix = [key_of(number) for number in range(1, 5)]
    blocks = [first.chunk(index) for index in range(len(prefix))]
    for engine in (first, second):
        for index, key in enumerate(prefix):
            engine.write(index, key)
    jobs = [engine.submit_store(prefix, blocks) for _ in range(25) for engine in (first, second)]
    results = []
    wait_until(
        lambda: results.extend([*first.rank.finished(), *second.rank.finished()]) or len(results) == len(jobs),
        "every store has ended",
    )
    ended = Counter(state for result in results for state in result.states)
    assert ended == {CopyState.OK: len(prefix), CopyState.DUPLICATE: len(prefix) * 49}
    chunk_bytes = first.copier.area_bytes(0)
    assert worker.metric("copy_bytes_total", leg="gpu_to_host") == len(prefix) * chunk_bytes

    worker.wait_metric("checksum_backlog", 0)
    for engine in (first, second):
        grants = []
        for number in range(50):
            seq = engine.scheduler.acquire(f"r{number}", [engine.run(prefix)])
            assert seq is not None
            grants.append(engine.scheduler.grant(seq, 10.0))
        assert all(grant is not None and set(grant.states) == {KeyState.HIT} for grant in grants)
        engine.zero()
        engine.submit_load(prefix, blocks, grants[0].number if grants[0] else 0)
        assert engine.result().ok
        assert all(engine.holds(index, key) for index, key in enumerate(prefix))
        for number in range(50):
            engine.scheduler.finish(f"r{number}")
    assert worker.metric("loads_completed_total") == 2 * len(prefix)
    check_idle(worker)


def test_four_engines_started_at_once_need_nothing_of_their_own() -> None:
    """No port, no path: they differ in their names alone."""
    engines = ["one", "two", "three", "four"]
    with WorkerProcess(host_pool="64MiB") as worker:
        with (
            LightProcess(worker.socket, engines[0], spawn_only=True) as one,
            LightProcess(worker.socket, engines[1], spawn_only=True) as two,
            LightProcess(worker.socket, engines[2], spawn_only=True) as three,
            LightProcess(worker.socket, engines[3], spawn_only=True) as four,
        ):
            together = (one, two, three, four)
            for engine in together:
                engine.wait_attached()
            for engine in together:
                assert engine.do("store", engine.name, 4)["stored"] == 4
            worker.wait_metric("checksum_backlog", 0)
            for engine in together:
                for name in engines:
                    answer = engine.do("load", name, 4)
                    assert (answer["hits"], answer["loaded"], answer["wrong"]) == (4, 4, 0)
        worker.wait_metric("sessions", 0)
        check_idle(worker)
