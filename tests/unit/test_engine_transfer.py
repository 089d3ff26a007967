"""One job against a worker whose side of the socket the test speaks itself: slots that change hands, bad answers."""

import fcntl
import mmap
import os
import socket
import threading
from collections.abc import Callable, Iterator

import pytest
import xxhash

from blockyard.common.codec import Decoder, encode
from blockyard.common.link import BlockingLink
from blockyard.common.messages.attach import (
    MAX_FRAME,
    FromEngine,
    GroupGrant,
    LoadDone,
    Resolve,
    Resolved,
    StoreDone,
    ToEngine,
    Welcome,
)
from blockyard.common.messages.states import CopyState
from blockyard.common.slot_table import (
    SlotRecord,
    SlotState,
    TableHeader,
    table_bytes,
    write_header,
    write_record,
)
from blockyard.engine.copies.base import GroupPages
from blockyard.engine.copies.cpu import CpuCopier
from blockyard.engine.detached import Detached
from blockyard.engine.job_queue import QueuedJob
from blockyard.engine.jobs import BlockRange, CopyJob, CopyKind
from blockyard.engine.pool_map import PoolMap
from blockyard.engine.rank_link import RankLink
from blockyard.engine.session import Session
from blockyard.engine.transfer import SAMPLE_EVERY, Transfer, Verifier, Verify
from support.engine_side import bytes_of, key_of, pages

POOL_BYTES = 1 << 16
SLOTS = 4
AREA = 4096
BOOT = bytes(16)
WELCOME = Welcome(1, "1", 1, BOOT, "w", b"", POOL_BYTES, table_bytes(SLOTS), [GroupGrant(0, 8192, 4096, AREA)], 1000)

Spoken = Resolve | StoreDone | LoadDone


class Bench:
    """A rank's transfer, and the worker's hands: the table, the pool, the other end of the link."""

    def __init__(self) -> None:
        pool, table = _sealed(POOL_BYTES), _sealed(table_bytes(SLOTS))
        self._table = mmap.mmap(table, 0)
        self.words = memoryview(self._table).cast("Q")
        write_header(self.words, TableHeader(BOOT, SLOTS, POOL_BYTES, 1 << 15))
        ours, self._theirs = socket.socketpair()
        session = Session(WELCOME, BlockingLink[ToEngine](ours, Decoder(ToEngine), MAX_FRAME), ())
        self.map = PoolMap(pool, table, WELCOME)
        self.link = RankLink(session, 0, SLOTS)
        self.tensors = [pages(16, 1024)]
        self.copier = CpuCopier([GroupPages(0, self.tensors, 4)])
        self.copier.bind(self.map.pool)
        self.heard: list[Spoken] = []

    def close(self) -> None:
        self.copier.unbind()
        self.map.close()
        self.link.close()
        self._theirs.close()
        self.words.release()
        self._table.close()

    def slot(self, slot: int, generation: int, *checksums: int) -> None:
        record = SlotRecord(generation, SlotState.READY, 1, slot * 8192, 8192, 4096, AREA, 1, key_of(slot), checksums)
        write_record(self.words, slot, record)

    def run(
        self, kind: CopyKind, answer: Callable[[Resolve], Resolved], verify: Verify = "off", cut: bool = False
    ) -> tuple[list[CopyState], int]:
        """States and unverified keys of a job with one key on blocks 0 to 3."""
        worker = threading.Thread(target=self._speak, args=(answer,))
        worker.start()
        transfer = Transfer(self.link, self.map, self.copier, Verifier(verify), lambda: cut)
        try:
            result = transfer.run(QueuedJob(CopyJob(1, kind, [key_of(1)], [BlockRange([0, 1, 2, 3])], 5)))
        finally:
            self._theirs.shutdown(socket.SHUT_RD)
            worker.join()
        return result.states, result.unverified

    def _speak(self, answer: Callable[[Resolve], Resolved]) -> None:
        link = BlockingLink[FromEngine](self._theirs, Decoder(FromEngine), MAX_FRAME)
        question = link.receive(5.0)
        assert isinstance(question, Resolve)
        self._theirs.sendall(encode(answer(question), MAX_FRAME))
        try:
            end = link.receive(5.0)
        except Exception:
            return
        assert isinstance(end, StoreDone | LoadDone)
        self.heard.append(end)


def _sealed(size: int) -> int:
    descriptor = os.memfd_create("m", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return descriptor


def place(slot: int = 1, generation: int = 7, offset: int = 8192) -> Callable[[Resolve], Resolved]:
    return lambda question: Resolved(question.seq, question.job, b"\0", [slot], [generation], [offset])


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    bench.slot(1, generation=7)
    yield bench
    bench.close()


def test_a_slot_of_another_generation_is_not_touched(bench: Bench) -> None:
    before = [bytes_of(bench.tensors, block) for block in range(4)]
    for kind in ("store", "load"):
        fresh = Bench()
        fresh.slot(1, generation=8)
        assert fresh.run(kind, place()) == ([CopyState.STALE], 0)
        assert not any(fresh.map.pool)
        fresh.close()
    assert bench.run("load", place()) == ([CopyState.OK], 0)
    assert [bytes_of(bench.tensors, block) for block in range(4)] != before, "the control"


@pytest.mark.parametrize("kind", ["store", "load"])
def test_a_slot_that_changes_hands_during_the_copy(
    bench: Bench, kind: CopyKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = getattr(bench.copier, kind)

    def copy_and_reuse(*arguments: object) -> int:
        copied: int = copy(*arguments)
        bench.slot(1, generation=8)
        return copied

    monkeypatch.setattr(bench.copier, kind, copy_and_reuse)
    assert bench.run(kind, place()) == ([CopyState.STALE], 0)
    (end,) = bench.heard
    assert end.states == bytes([CopyState.STALE]) and end.copied == 0


@pytest.mark.parametrize(
    "answer",
    [
        place(slot=SLOTS),
        place(slot=-1),
        place(offset=POOL_BYTES - 4095),
        place(offset=-8192),
        lambda question: Resolved(question.seq + 1, question.job, b"\0", [1], [7], [8192]),
        lambda question: Resolved(question.seq, 99, b"\0", [1], [7], [8192]),
        lambda question: Resolved(question.seq, question.job, b"\0\0", [1], [7], [8192]),
        lambda question: Resolved(question.seq, question.job, b"\0", [], [7], [8192]),
        lambda question: Resolved(question.seq, question.job, b"\xc8", [1], [7], [8192]),
    ],
)
def test_no_answer_leads_a_copy_astray(bench: Bench, answer: Callable[[Resolve], Resolved]) -> None:
    with pytest.raises(Detached) as caught:
        bench.run("store", answer)
    assert caught.value.reason.word == "refused"
    assert not any(bench.map.pool)


def test_verified_unverified_and_corrupt(bench: Bench) -> None:
    area = bytes(bench.map.pool[8192 : 8192 + AREA])
    assert bench.run("load", place(), "always") == ([CopyState.OK], 1)
    right = Bench()
    right.slot(1, 7, xxhash.xxh3_64_intdigest(area))
    assert right.run("load", place(), "always") == ([CopyState.OK], 0)
    right.close()
    wrong = Bench()
    wrong.slot(1, 7, 12345)
    before = bytes_of(wrong.tensors, 0)
    assert wrong.run("load", place(), "always") == ([CopyState.CORRUPT], 0)
    assert bytes_of(wrong.tensors, 0) == before
    assert wrong.heard[0].states == bytes([CopyState.CORRUPT])
    wrong.close()


def test_a_cut_job_copies_nothing_more_and_says_so(bench: Bench) -> None:
    assert bench.run("store", place(), cut=True) == ([CopyState.CANCELLED], 0)
    assert bench.heard[0].states == bytes([CopyState.CANCELLED])
    assert not any(bench.map.pool)


def test_a_sample_is_one_of_sixteen() -> None:
    verifier = Verifier("sample")
    assert sum(verifier.picks_next() for _ in range(SAMPLE_EVERY * 10)) == 10
    assert not any(Verifier("off").picks_next() for _ in range(100))
