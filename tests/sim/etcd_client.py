"""A process's connection to etcd: calls with time on the way, watches that lag. Owns what the production client
promises: each change once and in order from the last Resync on, and a Resync where that cannot be kept.
"""

from __future__ import annotations

import random
from collections import deque
from typing import Any

from blockyard.common.etcd.backoff import backoffs
from blockyard.common.etcd.errors import EtcdUnavailable, LeaseGone
from blockyard.common.etcd.values import KeyValue, Listing
from blockyard.common.etcd.watch import KeyDeleted, KeyPut, Resync, ResyncReason, WatchEvent
from sim.etcd_server import Change, Compacted, Down, EtcdServer, Gone, Request
from sim.process import Process
from sim.tasks import Future

TIMEOUT = 1.5
_LONGEST_POLL = 20.0


class EtcdClient:
    """`lag` is how late this process's watches are."""

    def __init__(self, server: EtcdServer, process: Process, draw: random.Random) -> None:
        self.server = server
        self.process = process
        self.lag = draw.choice([0.0, 0.0, 0.01, 0.3])
        self._draw = draw

    async def call(self, request: Request, timeout: float = TIMEOUT) -> Any:
        """What the server answers; EtcdUnavailable when nothing came, though it may have been done."""
        answer: Future[Any] = Future()
        self.server.clock.after(self._way(), lambda: self._arrive(request, answer))
        if not await self.process.within(answer, timeout):
            raise EtcdUnavailable("etcd did not answer")
        if isinstance(answer.value, Down):
            raise EtcdUnavailable("etcd is down")
        if isinstance(answer.value, Gone):
            raise LeaseGone("etcd lease is gone")
        if isinstance(answer.value, Exception):
            raise answer.value
        return answer.value

    def watch(self, key: str) -> Watch:
        """Follow all keys that begin so."""
        return Watch(self, key, self.process)

    async def changes(self, prefix: str, revision: int) -> list[Change]:
        """The next changes from `revision` on, as a stream would bring them."""
        server = self.server
        life = server.life
        waited = 0.0
        while server.life == life and waited < _LONGEST_POLL:
            found: list[Change] = await self.call(lambda: server.since(prefix, revision))
            if found:
                await self.process.sleep(self.lag * self._draw.random())
                return found
            began = server.clock.now
            await self.process.within(server.next_change(), _LONGEST_POLL)
            waited += server.clock.now - began
        if server.life != life:
            raise EtcdUnavailable("the stream broke")
        return []

    def _way(self) -> float:
        return 0.0005 + self._draw.expovariate(1000)

    def _arrive(self, request: Request, answer: Future[Any]) -> None:
        server = self.server
        if server.down:
            server.clock.after(self._way(), lambda: answer.resolve(Down()))
        elif server.clock.now < server.frozen_until:
            server.clock.after(server.frozen_until - server.clock.now, lambda: self._arrive(request, answer))
        else:
            try:
                value = request()
            except (Gone, Compacted) as error:
                value = error
            life = server.life
            server.clock.after(self._way(), lambda: self._come_back(life, value, answer))

    def _come_back(self, life: int, value: object, answer: Future[Any]) -> None:
        if self.server.life == life:
            answer.resolve(value)


class Watch:
    """`next` gives the next event. Close it when done."""

    def __init__(self, client: EtcdClient, key: str, process: Process) -> None:
        self._client = client
        self._key = key
        self._process = process
        self._next_revision: int | None = None
        self._reason = ResyncReason.START
        self._events: deque[WatchEvent] = deque()
        self._came: Future[None] = Future()
        self._pump = process.spawn(self._follow())

    async def next(self, seconds: float) -> WatchEvent | None:
        """The next event, or None after so many seconds."""
        if not self._events:
            self._came = Future()
            await self._process.within(self._came, seconds)
        return self._events.popleft() if self._events else None

    def close(self) -> None:
        self._pump.cancel()

    async def _follow(self) -> None:
        waits = backoffs()
        while True:
            try:
                if self._next_revision is None:
                    self._resync(await self._list(), self._reason)
                await self._stream(self._next_revision or 0)
                waits = backoffs()
            except EtcdUnavailable:
                await self._process.sleep(next(waits))

    async def _stream(self, start: int) -> None:
        """As long as one stream stands."""
        revision: int = await self._client.call(lambda: self._client.server.store.revision)
        if revision < start - 1:
            listing = await self._list()
            if listing.revision < start - 1:
                self._resync(listing, ResyncReason.WENT_BACK)
                return
        try:
            while True:
                changes = await self._client.changes(self._key, self._next_revision or 0)
                for change in changes:
                    self._deliver(change)
        except Compacted:
            self._next_revision, self._reason = None, ResyncReason.COMPACTED

    async def _list(self) -> Listing:
        server = self._client.server
        listing: Listing = await self._client.call(lambda: server.listing(self._key))
        return listing

    def _resync(self, listing: Listing, reason: ResyncReason) -> None:
        self._put(Resync(listing, reason))
        self._next_revision = listing.revision + 1

    def _deliver(self, change: Change) -> None:
        if isinstance(change, KeyValue):
            self._next_revision = change.mod_revision + 1
            self._put(KeyPut(change))
        else:
            self._next_revision = change[1] + 1
            self._put(KeyDeleted(*change))

    def _put(self, event: WatchEvent) -> None:
        self._events.append(event)
        self._came.resolve(None)
