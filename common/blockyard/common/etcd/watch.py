"""Following keys as they change. Owns one stream at a time, where it resumes, and when to list afresh;
never knows what the keys mean.

What the reader may rely on: each change is delivered once and in order, from the last `Resync` on, across
broken streams, restarts and other endpoints. Where that cannot be kept (what lies between was compacted,
or the store is not the one it was), a `Resync` with a fresh listing says so: forget all, start from it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from enum import Enum
from types import TracebackType

import grpc
import grpc.aio

from blockyard.common.etcd.backoff import backoffs
from blockyard.common.etcd.connection import Connection, meaning_of, stream_failure
from blockyard.common.etcd.errors import EtcdRefused, EtcdUnavailable
from blockyard.common.etcd.kv import Keys
from blockyard.common.etcd.values import KeyValue, Listing, key_bytes, key_value, range_end
from blockyard.common.etcd.wire import etcd_pb2 as pb
from blockyard.common.etcd.wire.methods import WATCH

_CREATED_TIMEOUT_S = 5.0
# A stream is renewed after this time however well it seems: no wait on etcd is without end.
_STREAM_LIFE_S = 600.0
# When the reader is this far behind we stop reading, and etcd keeps the rest.
_QUEUE_EVENTS = 4096


class ResyncReason(Enum):
    START = "start"
    COMPACTED = "compacted"
    WENT_BACK = "went-back"


@dataclass(frozen=True, slots=True)
class Resync:
    listing: Listing
    reason: ResyncReason


@dataclass(frozen=True, slots=True)
class KeyPut:
    kv: KeyValue


@dataclass(frozen=True, slots=True)
class KeyDeleted:
    """Deleted by hand, or its lease ended."""

    key: str
    revision: int


WatchEvent = Resync | KeyPut | KeyDeleted
_Stream = grpc.aio.StreamStreamCall[pb.WatchRequest, pb.WatchResponse]


class Watch:
    """`async with Watch(…) as events: async for event in events: …`

    Without `from_revision` the first event is a Resync with the listing as it stands. Iteration waits out any
    outage (see `broken_since`) and raises only where waiting cannot help. The wait for the next event may be
    cancelled at will, as by `asyncio.timeout`; nothing is lost by it.
    """

    def __init__(
        self,
        connection: Connection,
        key: str,
        *,
        prefix: bool = False,
        from_revision: int | None = None,
    ) -> None:
        self._connection = connection
        self._keys = Keys(connection)
        self._key = key
        self._prefix = prefix
        self._next_revision = from_revision
        self._resync_reason = ResyncReason.START
        self._events: asyncio.Queue[WatchEvent | Exception] = asyncio.Queue(_QUEUE_EVENTS)
        self._pump_task: asyncio.Task[None] | None = None
        self._broken_since: float | None = None

    @property
    def broken_since(self) -> float | None:
        """Monotonic time since when no stream stands; None while one does. Events may be late meanwhile."""
        return self._broken_since

    async def __aenter__(self) -> Watch:
        self._broken_since = time.monotonic()
        self._pump_task = asyncio.create_task(self._pump(), name=f"etcd watch {self._key}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pump_task is not None:
            self._pump_task.cancel()
            await asyncio.gather(self._pump_task, return_exceptions=True)

    def __aiter__(self) -> Watch:
        return self

    async def __anext__(self) -> WatchEvent:
        item = await self._events.get()
        if isinstance(item, Exception):
            raise item
        return item

    async def _pump(self) -> None:
        # Whatever ends the pump must reach the reader, who would wait for ever otherwise.
        try:
            await self._follow_for_ever()
        except asyncio.CancelledError:
            # Also what gRPC raises in a stream whose channel is closed under it.
            with contextlib.suppress(asyncio.QueueFull):
                self._events.put_nowait(RuntimeError(f"the etcd watch of {self._key} is closed"))
            raise
        except Exception as error:
            await self._events.put(error)

    async def _follow_for_ever(self) -> None:
        waits = backoffs()
        while True:
            try:
                if self._next_revision is None:
                    await self._resync(await self._list(), self._resync_reason)
                await self._follow_one_stream(self._next_revision or 0)
                waits = backoffs()
            except EtcdUnavailable:
                if self._broken_since is None:
                    self._broken_since = time.monotonic()
                    waits = backoffs()
                await asyncio.sleep(next(waits))

    async def _follow_one_stream(self, start: int) -> None:
        """Deliver events until the stream ends. Returns where the next one should follow at once."""
        endpoint = self._connection.current
        stream = self._connection.open_stream(WATCH, endpoint, timeout_s=_STREAM_LIFE_S)
        try:
            created = await self._create(stream, start)
            if created.header.revision < start - 1 and await self._store_went_back(start):
                return
            self._broken_since = None
            response = created
            while await self._deliver(response):
                response = await self._read(stream)
        except grpc.aio.AioRpcError as error:
            lived_out = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED and self._broken_since is None
            if not lived_out:
                self._connection.rotate_from(endpoint)
                raise meaning_of(error, f"etcd watch of {self._key} at {endpoint}") from None
        except TimeoutError:
            self._connection.rotate_from(endpoint)
            raise EtcdUnavailable(f"etcd watch of {self._key} at {endpoint}: no answer") from None
        finally:
            stream.cancel()

    async def _create(self, stream: _Stream, start: int) -> pb.WatchResponse:
        request = pb.WatchCreateRequest(
            key=key_bytes(self._key),
            range_end=range_end(self._key, prefix=self._prefix),
            start_revision=start,
        )
        async with asyncio.timeout(_CREATED_TIMEOUT_S):
            try:
                await stream.write(pb.WatchRequest(create_request=request))
            except asyncio.InvalidStateError:
                raise await stream_failure(stream) from None
            return await self._read(stream)

    async def _read(self, stream: _Stream) -> pb.WatchResponse:
        response = await stream.read()
        if isinstance(response, pb.WatchResponse):
            return response
        raise await stream_failure(stream)

    async def _deliver(self, response: pb.WatchResponse) -> bool:
        """Hand on the events of one response; False if the stream cannot go on from here."""
        if response.compact_revision:
            self._next_revision = None
            self._resync_reason = ResyncReason.COMPACTED
            return False
        if response.canceled:
            raise EtcdRefused(f"etcd watch of {self._key}: {response.cancel_reason or 'cancelled by etcd'}")
        for event in response.events:
            await self._events.put(_event(event))
        if response.events:
            # All changes of one revision come in one response, so the next stream starts after it.
            self._next_revision = response.events[-1].kv.mod_revision + 1
        return True

    async def _store_went_back(self, start: int) -> bool:
        """A member may lag behind; if the whole store is behind what we saw, it was wiped or restored."""
        listing = await self._list()
        if listing.revision >= start - 1:
            return False
        await self._resync(listing, ResyncReason.WENT_BACK)
        return True

    async def _resync(self, listing: Listing, reason: ResyncReason) -> None:
        await self._events.put(Resync(listing, reason))
        self._next_revision = listing.revision + 1

    async def _list(self) -> Listing:
        return await self._keys.list(self._key, prefix=self._prefix)


def _event(message: pb.Event) -> WatchEvent:
    kv = key_value(message.kv)
    if message.type == pb.Event.DELETE:
        return KeyDeleted(kv.key, kv.mod_revision)
    return KeyPut(kv)
