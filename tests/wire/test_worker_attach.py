"""Engines at a real worker over a real socket: attach, store, load, and the ways a session ends."""

from __future__ import annotations

import mmap
import resource
from collections.abc import Iterator

import pytest
import xxhash

from blockyard.common.link import LinkClosed
from blockyard.common.messages import attach
from blockyard.common.messages.states import CopyState, KeyState
from blockyard.common.slot_table import SlotState
from support.attach_client import Engine, Session, hello, key, scheduler_hello
from support.leader_process import wait_for
from support.worker_process import WorkerProcess

AREA = 8192


@pytest.fixture(scope="module")
def worker() -> Iterator[WorkerProcess]:
    with WorkerProcess() as process:
        yield process


def content(number: int) -> bytes:
    return bytes([number % 251]) * AREA


def test_what_is_stored_is_loaded(worker: WorkerProcess) -> None:
    chunks = {key(number): content(number) for number in range(20)}
    with Engine(worker.socket, hello(fingerprint=b"1" * 32)) as engine:
        places = engine.store(chunks)
        assert set(places.states) == {CopyState.OK}
        grant = engine.acquire(list(chunks))
        assert set(grant.states) == {KeyState.HIT}
        assert engine.load(grant, list(chunks)) == list(chunks.values())


def test_the_table_says_what_the_pool_holds(worker: WorkerProcess) -> None:
    with Engine(worker.socket, hello(fingerprint=b"2" * 32)) as engine:
        places = engine.store({key(200): content(1)})
        slot = places.slots[0]
        worker.wait_metric("checksum_backlog", 0)
        record = engine.record(slot)
        assert record.state is SlotState.READY
        assert (record.key, record.generation, record.offset) == (key(200), places.generations[0], places.offsets[0])
        assert (record.areas, record.area_bytes, record.part_mask) == (1, AREA, 1)
        assert record.checksums == (xxhash.xxh3_64_intdigest(content(1)),)


def test_chunks_outlive_their_engine_and_serve_the_next(worker: WorkerProcess) -> None:
    with Engine(worker.socket, hello(fingerprint=b"3" * 32, engine="first")) as engine:
        engine.store({key(300): content(7)})
        worker.wait_metric("checksum_backlog", 0)
    with Engine(worker.socket, hello(fingerprint=b"3" * 32, engine="second")) as engine:
        grant = engine.acquire([key(300), key(301)])
        assert list(grant.states) == [KeyState.HIT, KeyState.NEVER_STORED]
        assert engine.load(grant, [key(300)]) == [content(7)]


def test_engines_of_another_fingerprint_share_nothing(worker: WorkerProcess) -> None:
    with (
        Engine(worker.socket, hello(fingerprint=b"4" * 32, engine="a")) as one,
        Engine(worker.socket, hello(fingerprint=b"5" * 32, engine="b")) as other,
    ):
        one.store({key(400): content(1)})
        assert list(other.acquire([key(400)]).states) != [KeyState.HIT]


def test_an_engine_cannot_write_the_table_nor_resize_either(worker: WorkerProcess) -> None:
    rank = Session(worker.socket, hello(engine="sealed"))
    pool, table = rank.received
    with pytest.raises(PermissionError):
        mmap.mmap(table, rank.welcome.table_bytes)
    for descriptor, size in ((pool, rank.welcome.pool_bytes), (table, rank.welcome.table_bytes)):
        mapped = mmap.mmap(descriptor, size, prot=mmap.PROT_READ)
        mapped.close()
        for wrong in (size - mmap.PAGESIZE, size + mmap.PAGESIZE):
            with pytest.raises(PermissionError), open(descriptor, "r+b", closefd=False) as file:
                file.truncate(wrong)
    rank.close()


def test_a_scheduler_gets_no_memory_and_waits_for_its_ranks(worker: WorkerProcess) -> None:
    message = hello(engine="pair", local_ranks=2, fingerprint=b"6" * 32)
    first = Session(worker.socket, message)
    scheduler = Session(worker.socket)
    scheduler.begin(scheduler_hello(message))
    second = Session(worker.socket, hello(engine="pair", local_ranks=2, rank=1, fingerprint=b"6" * 32))
    scheduler.take_answer()
    assert isinstance(scheduler.answer, attach.Welcome)
    assert scheduler.received == []
    assert [len(one.received) for one in (first, second)] == [2, 2]
    for session in (first, second, scheduler):
        session.close()


@pytest.mark.parametrize(
    ("code", "changes"),
    [
        ("version", {"protocol_min": 7, "protocol_max": 9}),
        ("size", {"groups": [attach.GroupShape(0, 256, 2 << 20)]}),
        ("shape", {"groups": [attach.GroupShape(0, 256, 0)]}),
        ("ranks", {"rank": 3}),
    ],
)
def test_a_refusal_says_why_and_closes(worker: WorkerProcess, code: str, changes: dict[str, object]) -> None:
    before = worker.metric("attaches_refused_total", reason=code)
    rank = Session(worker.socket, hello(engine="refused", **changes))
    assert isinstance(rank.answer, attach.Refused)
    assert (rank.answer.code, rank.received) == (code, [])
    assert rank.answer.detail
    rank.ended()
    rank.close()
    assert worker.metric("attaches_refused_total", reason=code) == before + 1


def test_refused_and_ended_sessions_leave_no_descriptor_behind() -> None:
    with WorkerProcess() as worker:
        Session(worker.socket, hello(engine="warm")).close()
        worker.wait_metric("sessions", 0)
        before = worker.descriptors()
        for _ in range(50):
            with Engine(worker.socket, hello(engine="come-and-go")) as engine:
                engine.store({key(9): content(9)})
            Session(worker.socket, hello(engine="refused", rank=3)).close()
        worker.wait_metric("sessions", 0)
        worker.wait_descriptors(before)


def test_a_worker_out_of_descriptors_serves_on_and_recovers() -> None:
    with WorkerProcess() as worker, Engine(worker.socket) as engine:
        _, most = resource.prlimit(worker.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(worker.pid, resource.RLIMIT_NOFILE, (worker.descriptors(), most))
        late = Session(worker.socket)
        for number in range(20):
            engine.store({key(number): content(number)})
            assert engine.load(engine.acquire([key(number)]), [key(number)]) == [content(number)]
        wait_for(lambda: "connection not accepted" in worker.log, 10.0, "it says so")
        resource.prlimit(worker.pid, resource.RLIMIT_NOFILE, (most, most))
        late.introduce(hello(engine="late"))
        assert late.welcome
        late.close()


def test_bye_ends_a_session(worker: WorkerProcess) -> None:
    rank = Session(worker.socket, hello(engine="polite"))
    rank.send(attach.Bye())
    rank.ended()
    rank.close()


def test_a_message_of_the_other_role_ends_the_session(worker: WorkerProcess) -> None:
    rank = Session(worker.socket, hello(engine="confused"))
    rank.send(attach.Finish("r"))
    assert "Finish" in rank.ended()
    rank.close()


def test_a_peer_that_does_not_read_is_cut_off_and_others_are_served() -> None:
    blob = b"".join(key(number) for number in range(attach.MAX_KEYS))
    with WorkerProcess() as worker:
        rank = Session(worker.socket, hello(engine="deaf"))
        with pytest.raises(LinkClosed):
            for number in range(2000):
                rank.send(attach.Resolve(number, number, "load", 0, blob, 0))
        rank.close()
        worker.wait_metric("sessions", 0)
        assert "does not read" in worker.log
        with Engine(worker.socket, hello(engine="fine")) as engine:
            assert list(engine.acquire([key(1)]).states) == [KeyState.NEVER_STORED]
