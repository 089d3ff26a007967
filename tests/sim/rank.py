"""A rank process of a simulated engine. Owns the same steps as production's copy thread: attach, resolve, copy page by
page, check the generation before and after, report, detach on trouble. The queue of jobs and the breaker are the
production ones.

Copies take virtual time and really move tags, so what happens meanwhile shows. Each load that counts is checked.
"""

from __future__ import annotations

import random
from collections import deque
from typing import TYPE_CHECKING

import msgspec

from blockyard.common.codec import Decoder, FrameRefused
from blockyard.common.frame_protocol import FrameProtocol
from blockyard.common.link import LinkClosed
from blockyard.common.messages import attach
from blockyard.common.messages.states import CopyState
from blockyard.common.slot_table import PAGE
from blockyard.engine.breaker import Breaker
from blockyard.engine.job_queue import JobQueue, QueuedJob
from blockyard.engine.jobs import CopyJob, CopyResult
from blockyard.engine.rank_link import RESOLVE_SECONDS, STORE_WAIT_MS
from sim.memory import Memory, tag
from sim.process import Process
from sim.tasks import Future, Signal
from sim.violation import Violation

if TYPE_CHECKING:
    from sim.engine import Engine

HANDSHAKE_SECONDS = 2.0
_IDLE_SECONDS = 0.25


class Detached(Exception):
    """The session came to nothing."""


class Link(FrameProtocol[attach.ToEngine]):
    """An engine's end of a session, read one message at a time."""

    def __init__(self, process: Process) -> None:
        super().__init__(Decoder(attach.ToEngine), attach.MAX_FRAME)
        self._process = process
        self._inbox: deque[attach.ToEngine] = deque()
        self._came: Future[None] = Future()
        self.over = False

    @property
    def memory(self) -> Memory | None:
        memory: Memory | None = self._transport.pipe.memory  # type: ignore[union-attr]
        return memory

    def received(self, message: attach.ToEngine) -> None:
        self._inbox.append(message)
        self._came.resolve(None)

    def refused(self, error: FrameRefused, payload: bytes) -> None:
        raise Violation("frames-understood", f"{self._process.name}: {error}")

    def lost(self, reason: str) -> None:
        self.over = True
        self._came.resolve(None)

    async def receive(self, seconds: float) -> attach.ToEngine | None:
        """The next message, None when none came in time; Detached at the end."""
        if not self._inbox and not self.over:
            self._came = Future()
            await self._process.within(self._came, seconds)
        if self._inbox:
            return self._inbox.popleft()
        if self.over:
            raise Detached
        return None

    def say(self, message: msgspec.Struct) -> None:
        try:
            self.send(message)
        except LinkClosed:
            raise Detached from None


class Rank:
    """One rank's process."""

    def __init__(self, engine: Engine, rank: int, process: Process) -> None:
        self.engine = engine
        self.rank = rank
        self.process = process
        self.queue = JobQueue()
        self.refusal = ""
        self.ignores_generations = engine.world.broken.ignores_generations
        self._draw: random.Random = engine.world.streams.of(f"rank/{process.name}")
        self._wake = Signal()
        self._breaker = Breaker()
        self._hello = engine.hello("rank", rank)
        self._link: Link | None = None
        self.memory: Memory | None = None
        self._seq = 0
        self._strides: dict[int, int] = {}
        self.copying = False
        self._read: dict[tuple[int, int], bytes] = {}
        """What a load has brought so far, by place in the job and page."""
        process.spawn(self._run())

    @property
    def attached(self) -> bool:
        return self.queue.open

    def submit(self, job: CopyJob) -> None:
        self.queue.put(QueuedJob(job))
        self._hand_over()
        self._wake.set()

    def cancel(self, job: int) -> None:
        """The request is aborted: what has not begun never does."""
        self.queue.wait({job}, 0.0)
        self._hand_over()
        self._wake.set()

    async def _run(self) -> None:
        while True:
            if self._link is None:
                await self._attach_when_due()
            elif (queued := self.queue.take(0.0)) is not None:
                await self._serve(self._link, queued)
            else:
                await self._look(self._link)
            self._hand_over()

    async def _attach_when_due(self) -> None:
        now = self.process.clock.now
        if not self._breaker.admits(now):
            await self.process.sleep(self._breaker.retry_at - now)
            return
        try:
            await self._attach()
        except Detached:
            self._detach()

    async def _attach(self) -> None:
        link = Link(self.process)
        network = self.engine.world.network
        if not await network.connect(self.process, f"unix:{self.engine.machine}", link):
            raise Detached
        self._link = link
        link.say(self._hello)
        answer = await link.receive(HANDSHAKE_SECONDS)
        if isinstance(answer, attach.Refused):
            self.refusal = answer.code
        if not isinstance(answer, attach.Welcome) or link.memory is None:
            raise Detached
        self._hello = msgspec.structs.replace(self._hello, previous=answer.session, previous_boot=answer.boot_id)
        self.memory = link.memory
        self._strides = {grant.group: grant.area_stride for grant in answer.groups}
        self.queue.set_open(True)

    async def _look(self, link: Link) -> None:
        try:
            for job in self.queue.take_unsaid():
                await self._cancel(link, job)
            if link.over:
                raise Detached
            if await self._wake.wait(self.process, _IDLE_SECONDS):
                return
            if isinstance(await link.receive(0.0), attach.Closing):
                raise Detached
        except Detached:
            self._detach()

    async def _cancel(self, link: Link, job: CopyJob) -> None:
        places = await self._resolve(link, job, 0)
        if CopyState.OK in places.states:
            link.say(attach.StoreDone(job.job, bytes([CopyState.CANCELLED]) * len(job.keys), 0, 0))

    async def _serve(self, link: Link, queued: QueuedJob) -> None:
        """Run one job to its end, whatever happens to the link meanwhile."""
        job = queued.job
        result: list[CopyState] | None = None
        try:
            places = await self._resolve(link, job, STORE_WAIT_MS if job.kind == "store" else 0)
            states = await self._copy(job, places)
            result = states if job.kind == "load" else None
            if CopyState.OK in places.states:
                done = attach.StoreDone if job.kind == "store" else attach.LoadDone
                link.say(done(job.job, bytes(states), states.count(CopyState.OK), 1))
            result = states
            self._breaker.answered()
        except Detached:
            self._detach()
        self.queue.ended(CopyResult(job.job, job.kind, result or [CopyState.DETACHED] * len(job.keys)))

    async def _resolve(self, link: Link, job: CopyJob, wait_ms: int) -> attach.Resolved:
        self._seq += 1
        link.say(attach.Resolve(self._seq, job.job, job.kind, job.grant, b"".join(job.keys), wait_ms))
        answer = await link.receive(RESOLVE_SECONDS[job.kind])
        if answer is None or isinstance(answer, attach.Closing):
            raise Detached
        if not isinstance(answer, attach.Resolved) or answer.seq != self._seq:
            raise Violation("answers-fit", f"{self.process.name}: {answer} to the places of job {job.job}")
        return answer

    async def _copy(self, job: CopyJob, places: attach.Resolved) -> list[CopyState]:
        memory = self.memory
        assert memory is not None
        states = []
        slots = [slot for slot, state in zip(places.slots, places.states, strict=True) if state == CopyState.OK]
        for slot in slots:
            memory.begin_copy(slot)
        self.copying = bool(slots)
        try:
            for at in range(len(job.keys)):
                states.append(await self._copy_one(memory, job, places, at))
            for at, state in enumerate(states):
                if state is CopyState.OK and self._changed(memory, places, at):
                    states[at] = CopyState.STALE
            if job.kind == "load":
                self._check(job, states)
            return states
        finally:
            self.copying = False
            for slot in slots:
                memory.end_copy(slot)

    async def _copy_one(self, memory: Memory, job: CopyJob, places: attach.Resolved, at: int) -> CopyState:
        state = CopyState(places.states[at])
        if state is not CopyState.OK:
            return state
        if self.queue.cut:
            return CopyState.CANCELLED
        if self._changed(memory, places, at):
            return CopyState.STALE
        group = job.blocks[at].group
        size = self.engine.shape.area_bytes[group]
        start = places.offsets[at] + self.rank * self._strides[group]
        if job.kind == "load" and self.engine.verifies:
            expected = memory.checksum(places.slots[at], self.rank)
            if expected is not None and memory.hash_area(start, size) != expected:
                return CopyState.CORRUPT
        for page in range(size // PAGE):
            await self.process.sleep(self._page_time())
            place = start // PAGE + page
            if job.kind == "store":
                memory.pages[place] = tag(job.keys[at], self.rank, page)
            else:
                self._read[at, page] = memory.pages[place]
        if self._draw.random() < 0.002:
            return CopyState.COPY_ERROR
        return CopyState.OK

    def _changed(self, memory: Memory, places: attach.Resolved, at: int) -> bool:
        if self.ignores_generations:
            return False
        return memory.generation(places.slots[at]) != places.generations[at]

    def _page_time(self) -> float:
        time = self._draw.uniform(0.0002, 0.002)
        return time * 200 if self._draw.random() < 0.01 else time

    def _check(self, job: CopyJob, states: list[CopyState]) -> None:
        """verified-bytes: what counts as loaded is what was asked for."""
        numbers = self.engine.world.numbers
        for at, state in enumerate(states):
            numbers[f"loads {state.label}"] += 1
            if state is not CopyState.OK:
                continue
            key = job.keys[at]
            numbers["reads checked"] += 1
            for page in range(self.engine.shape.area_bytes[job.blocks[at].group] // PAGE):
                found = self._read[at, page]
                if found != tag(key, self.rank, page):
                    detail = f"{self.process.name} loaded {found.hex()[:8]} for {key.hex()[:8]}, page {page}"
                    raise Violation("verified-bytes", detail, key)
        self._read.clear()

    def _detach(self) -> None:
        """No copy runs: unmap, end what is queued, try again after the breaker's delay."""
        self._breaker.failed(self.process.clock.now)
        if self._link is not None:
            self._link.abort("detached")
            self._link = None
        self.memory = None
        self.queue.set_open(False)

    def _hand_over(self) -> None:
        for result in self.queue.take_results(0.0):
            self.engine.result(self, result)
