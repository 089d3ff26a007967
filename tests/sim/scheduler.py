"""A simulated engine's scheduler process. Owns the life of requests, and the same use of a session as production's
scheduler client and vLLM manager: one question per request, deadlines, pins released, fills announced. The books of
open questions and of hints and the breaker are the production ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from blockyard.common.messages import attach
from blockyard.common.messages.states import CopyState, KeyState
from blockyard.engine.answers import Answers, Grant
from blockyard.engine.breaker import Breaker
from blockyard.engine.hint_desk import HintDesk
from sim.load import Conversations
from sim.process import Process
from sim.rank import Detached, Link
from sim.tasks import Future
from sim.violation import Violation

if TYPE_CHECKING:
    from sim.engine import Engine

ANSWER_SECONDS = 1.0
ACQUIRE_DEADLINE = 0.5
_HANDSHAKE_SECONDS = 3.0
_MAX_OPEN = 6


class Scheduler:
    """One engine's scheduler process."""

    def __init__(self, engine: Engine, process: Process, talks: Conversations) -> None:
        self.engine = engine
        self.process = process
        self.refusal = ""
        self.open_requests: dict[str, float] = {}
        self._talks = talks
        self._draw = engine.world.streams.of(f"scheduler/{process.name}")
        self._breaker = Breaker()
        self._hello = engine.hello("scheduler", 0)
        self._answers = Answers()
        self._hints = HintDesk()
        self._hints_draw = engine.world.streams.of(f"hints/{process.name}")
        self.said: dict[str, attach.Hints] = {}
        """What its requests ever said of themselves."""
        self.told: dict[str, attach.Hints] = {}
        """What the worker was told of it in this session, but for requests that it knows to be over."""
        self._asked: dict[int, Future[None]] = {}
        self._link: Link | None = None
        self._attachments = 0
        self._requests = 0
        self._jobs = 0
        process.spawn(self._stay_attached())
        process.spawn(self._take_requests())

    @property
    def attached(self) -> bool:
        return self._link is not None

    @property
    def session(self) -> int:
        """The worker's number of the last session."""
        return self._hello.previous

    # The session.

    async def _stay_attached(self) -> None:
        while True:
            now = self.process.clock.now
            if not self._breaker.admits(now):
                await self.process.sleep(self._breaker.retry_at - now)
            try:
                link = await self._attach()
                while self._link is link:
                    self._take(await link.receive(0.25))
            except Detached:
                self._detach()

    async def _attach(self) -> Link:
        link = Link(self.process)
        if not await self.engine.world.network.connect(self.process, f"unix:{self.engine.machine}", link):
            raise Detached
        try:
            link.say(self._hello)
            answer = await link.receive(_HANDSHAKE_SECONDS)
        except Detached:
            answer = None
        if isinstance(answer, attach.Refused):
            self.refusal = answer.code
        if not isinstance(answer, attach.Welcome):
            link.abort("not welcome")
            raise Detached
        self._hello = msgspec.structs.replace(self._hello, previous=answer.session, previous_boot=answer.boot_id)
        self._attachments += 1
        self._takes_hints = answer.protocol >= attach.HINTS_SINCE
        self._link = link
        return link

    def _take(self, message: attach.ToEngine | None) -> None:
        if isinstance(message, attach.Closing):
            raise Detached
        if isinstance(message, attach.Grant):
            _, unwanted = self._answers.answered(message, self._attachments, self.process.clock.now)
            self._breaker.answered()
            if unwanted is not None and unwanted.number:
                self._send(attach.Release(unwanted.number))
            if message.seq in self._asked:
                self._asked.pop(message.seq).resolve(None)
        elif message is not None:
            raise Violation("answers-fit", f"{self.process.name}: {message}")
        if self._answers.longest_wait(self.process.clock.now) > ANSWER_SECONDS:
            raise Detached

    def _detach(self) -> None:
        self._breaker.failed(self.process.clock.now)
        if self._link is not None:
            self._link.abort("detached")
            self._link = None
        self._answers.clear()
        self._hints.session_ended()
        self.told.clear()
        asked, self._asked = self._asked, {}
        for future in asked.values():
            future.resolve(None)

    def _send(self, message: msgspec.Struct) -> bool:
        if self._link is None:
            return False
        try:
            self._link.say(message)
        except Detached:
            self._detach()
        return self._link is not None

    def _finish(self, name: str) -> None:
        self._hints.finished(name)
        self.told.pop(name, None)
        self._send(attach.Finish(name))

    def _hinted(self, name: str) -> bool:
        """Whether the worker is there, and has been told the hints of the request if it takes any."""
        hints = self._hints.take(name) if self.attached and self._takes_hints else None
        if hints is None:
            return self.attached
        self.told[name] = hints
        self.engine.world.numbers["hints sent"] += 1
        return self._send(hints)

    # Requests.

    async def _take_requests(self) -> None:
        while True:
            await self.process.sleep(self._draw.expovariate(self.engine.world.requests_per_second))
            if self.engine.world.quiet or len(self.open_requests) >= _MAX_OPEN:
                continue
            self._requests += 1
            name = f"request{self._requests}"
            self.open_requests[name] = self.process.clock.now
            self.engine.world.numbers["requests"] += 1
            self.process.spawn(self._serve(name, self._talks.turn(self._draw)))

    async def _serve(self, name: str, talk: list[str]) -> None:
        keys, groups = self._keys(talk)
        self._say(name)
        loaded = 0
        for _ in range(3):  # a failed load is tried again without what failed, as after a recomputation
            loaded, failed = await self._load(name, talk, keys, groups)
            if not failed:
                break
        await self.process.sleep(self._draw.expovariate(50))
        if loaded < len(talk):
            await self._store(name, talk, loaded)
        if self._draw.random() < 0.9:
            self._finish(name)
        self._hints.drop(name)
        del self.open_requests[name]
        self.engine.world.numbers["requests ended"] += 1
        if self._draw.random() < 0.002:
            self._send(attach.Forget("weights changed"))

    def _say(self, name: str) -> None:
        """Some requests have hints, of any kind."""
        draw = self._hints_draw
        if draw.random() < 0.5:
            self.said[name] = attach.Hints(
                name,
                priority=draw.choice([0, attach.DEFAULT_PRIORITY, attach.MAX_PRIORITY]),
                ttl_ms=draw.choice([0, 1, attach.MAX_TTL_MS]),
                session=f"talk{draw.randrange(4)}",
                release=draw.random() < 0.2,
                pin_ms=draw.choice([0, 0, attach.MAX_PIN_MS]),
            )
            self._hints.put(self.said[name])

    async def _load(self, name: str, talk: list[str], keys: list[bytes], groups: list[int]) -> tuple[int, bool]:
        """Chunks of the request that were loaded, and whether a load failed."""
        grant = await self._ask(name, talk)
        if grant is None or not grant.number:
            return 0, False
        hits = self._common_prefix(grant.states, len(talk))
        wanted = hits if self._draw.random() < 0.8 else self._draw.randrange(hits + 1)
        aborted = self._draw.random() < 0.05
        if self._draw.random() < 0.05:  # blocks are short: the request waits, its pins may run out
            await self.process.sleep(self._draw.expovariate(0.5))
        if not wanted:
            if not aborted:
                self._release(grant)
            return 0, False
        chosen = [i for i in range(len(keys)) if i % len(talk) < wanted]
        surplus = b"".join(keys[i] for i in range(len(keys)) if i not in set(chosen) and not grant.states[i])
        if surplus:
            self._release(grant, surplus)
        number = self._next_job()
        over = self.engine.copy(number, "load", grant.number, [keys[i] for i in chosen], [groups[i] for i in chosen])
        if aborted:
            await self.process.sleep(self._draw.expovariate(500))
            self.engine.cancel(number)
            self._finish(name)
        states = await over
        if not aborted:
            self._release(grant)
        return (wanted, False) if all(s is CopyState.OK for s in states) else (0, not aborted)

    async def _store(self, name: str, talk: list[str], first: int) -> None:
        number = self._next_job()
        keys, groups = self._keys(talk[first:])
        if not self._hinted(name) or not self._send(attach.Fill(number, name, self._runs(talk, first))):
            return
        over = self.engine.copy(number, "store", 0, keys, groups)
        if self._draw.random() < 0.05:
            await self.process.sleep(self._draw.expovariate(300))
            self.engine.cancel(number)
        for state in await over:
            self.engine.world.numbers[f"stores {state.label}"] += 1

    async def _ask(self, name: str, talk: list[str]) -> Grant | None:
        """The worker's answer, None when there is none in time."""
        if self._answers.full or not self._hinted(name):
            return None
        runs = self._runs(talk, 0)
        seq = self._answers.ask(len(talk) * len(runs), self.process.clock.now)
        self._asked[seq] = come = Future[None]()
        waits = self._draw.choice([0, int(800 * ACQUIRE_DEADLINE)])
        if not self._send(attach.Acquire(seq, name, runs, waits)):
            return None
        patience = ACQUIRE_DEADLINE if self._draw.random() < 0.95 else 0.0002
        if not await self.process.within(come, patience):
            unwanted = self._answers.abandon(seq)
            if unwanted is not None and unwanted.number:
                self._send(attach.Release(unwanted.number))
            return None
        return self._answers.take(seq)

    def _release(self, grant: Grant, keys: bytes = b"") -> None:
        if grant.attachment == self._attachments:
            self._send(attach.Release(grant.number, keys))

    def _keys(self, talk: list[str]) -> tuple[list[bytes], list[int]]:
        """Keys of these chunks, one group after the other."""
        shape = self.engine.shape
        pairs = [(shape.key(path, group), group) for group in shape.groups for path in talk]
        return [key for key, _ in pairs], [group for _, group in pairs]

    def _runs(self, talk: list[str], first: int) -> list[attach.Run]:
        shape = self.engine.shape
        runs = []
        for group in shape.groups:
            keys = b"".join(shape.key(path, group) for path in talk[first:])
            parent = shape.key(talk[first - 1], group) if first else b""
            runs.append(attach.Run(group, first, parent, keys, prefix=group == 0))
        return runs

    def _common_prefix(self, states: bytes, length: int) -> int:
        """Chunks that every group has, from the first on."""
        rows = [states[i : i + length] for i in range(0, len(states), length)]
        for at, column in enumerate(zip(*rows, strict=True)):
            if any(state != KeyState.HIT for state in column):
                return at
        return length

    def _next_job(self) -> int:
        self._jobs += 1
        return self._jobs
