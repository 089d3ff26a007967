"""Requests to a set of etcd endpoints. Owns the channels, which endpoint is current, rotation, deadlines and
the meaning of gRPC's status codes; never knows what a request is for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import grpc
import grpc.aio

from blockyard.common.errors import ConfigError
from blockyard.common.etcd.backoff import backoffs
from blockyard.common.etcd.endpoints import EtcdTls, parse_endpoints
from blockyard.common.etcd.errors import EtcdError, EtcdRefused, EtcdUnavailable, EtcdUncertain, LeaseGone
from blockyard.common.etcd.wire.methods import Method, Request, Response

DEFAULT_TIMEOUT_S = 5.0

# A member cut off from its cluster answers at once instead of hanging.
_METADATA = (("hasleader", "true"),)
_OPTIONS = (
    # etcd closes connections that are pinged more often than every 5 s.
    ("grpc.keepalive_time_ms", 6_000),
    # gRPC versions differ in which of the two bounds the wait for a ping's answer (the second is 60 s unset).
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.http2.ping_timeout_ms", 3_000),
    ("grpc.http2.max_pings_without_data", 0),
    # Left alone, a channel to a dead endpoint fails without trying for up to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", 16 * 1024 * 1024),
)

_TRANSIENT = {
    # A stream that ended well, but without the answer.
    grpc.StatusCode.OK,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.ABORTED,
    # etcd reports some passing states of its raft so.
    grpc.StatusCode.UNKNOWN,
}
# What gRPC's security layer calls its own errors.
_HANDSHAKE_FAILED = "(TSI_"
_NEVER_APPLIED = ("failed to connect", "DNS resolution failed", "etcdserver: no leader", "too many requests")


class Connection:
    """One channel per endpoint, made when first needed. Use from one event loop; close it when done."""

    def __init__(
        self,
        endpoints: str | Sequence[str],
        *,
        tls: EtcdTls | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        if timeout_s <= 0:
            raise ConfigError(f"etcd timeout is {timeout_s} s; right: more than 0")
        self.endpoints = parse_endpoints(endpoints, tls=tls is not None)
        self._credentials = tls.credentials() if tls else None
        self._timeout_s = timeout_s
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._current = 0
        self._closed = False

    @property
    def current(self) -> str:
        """The endpoint that the next request goes to."""
        return self.endpoints[self._current]

    def rotate_from(self, endpoint: str) -> None:
        """Leave an endpoint that failed, unless another request has done so already."""
        if self.current == endpoint:
            self._current = (self._current + 1) % len(self.endpoints)

    async def call(
        self, method: Method[Request, Response], request: Request, *, timeout_s: float | None = None
    ) -> Response:
        """Send one request; return the answer of whichever endpoint gives one within the deadline."""
        total_s = self._timeout_s if timeout_s is None else timeout_s
        deadline = time.monotonic() + total_s
        backoff = backoffs()
        tried = 0
        reason = "the deadline had passed before the first try"
        while (left := deadline - time.monotonic()) > 0:
            endpoint = self.current
            untried = len(self.endpoints) - tried % len(self.endpoints)
            try:
                # A hung endpoint may use up its share of the time, not the other endpoints'.
                return await self._attempt(method, request, endpoint, left / untried)
            except grpc.aio.AioRpcError as error:
                reason = self._absorb(method, endpoint, error)
            tried += 1
            if tried % len(self.endpoints) == 0:
                await asyncio.sleep(max(0.0, min(next(backoff), deadline - time.monotonic())))
        raise EtcdUnavailable(
            f"etcd {method.path}: no answer from {', '.join(self.endpoints)} within {total_s:g} s; last: {reason}"
        )

    def open_stream(
        self, method: Method[Request, Response], endpoint: str, *, timeout_s: float
    ) -> grpc.aio.StreamStreamCall[Request, Response]:
        """Start a two-way stream to one endpoint. Its owner reads and cancels it and sees gRPC's errors."""
        multi = self._channel(endpoint).stream_stream(
            method.path,
            request_serializer=method.encode,
            response_deserializer=method.decode,
        )
        return multi(timeout=timeout_s, metadata=_METADATA)

    async def close(self) -> None:
        self._closed = True
        channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            await channel.close()

    async def _attempt(
        self, method: Method[Request, Response], request: Request, endpoint: str, timeout_s: float
    ) -> Response:
        if method.streams:
            return await self._exchange_once(method, request, endpoint, timeout_s)
        multi = self._channel(endpoint).unary_unary(
            method.path,
            request_serializer=method.encode,
            response_deserializer=method.decode,
        )
        return await multi(request, timeout=timeout_s, metadata=_METADATA)

    async def _exchange_once(
        self, method: Method[Request, Response], request: Request, endpoint: str, timeout_s: float
    ) -> Response:
        """One question and one answer over a stream that is then dropped."""
        stream = self.open_stream(method, endpoint, timeout_s=timeout_s)
        try:
            await stream.write(request)
            answer = await stream.read()
        except asyncio.InvalidStateError:
            answer = None
        finally:
            stream.cancel()
        if isinstance(answer, method.response):
            return answer
        raise await stream_failure(stream)

    def _absorb(self, method: Method[Request, Response], endpoint: str, error: grpc.aio.AioRpcError) -> str:
        """Rotate after a failure that another endpoint may not have, and describe it; raise any other."""
        meaning = meaning_of(error, f"etcd {method.path} at {endpoint}")
        if not isinstance(meaning, EtcdUnavailable):
            raise meaning from None
        self.rotate_from(endpoint)
        if isinstance(meaning, EtcdUncertain) and not method.replay_safe:
            raise meaning from None
        return str(meaning)

    def _channel(self, endpoint: str) -> grpc.aio.Channel:
        if self._closed:
            raise RuntimeError("this etcd client is closed")
        channel = self._channels.get(endpoint)
        if channel is None:
            if self._credentials is None:
                channel = grpc.aio.insecure_channel(endpoint, options=_OPTIONS)
            else:
                channel = grpc.aio.secure_channel(endpoint, self._credentials, options=_OPTIONS)
            self._channels[endpoint] = channel
        return channel


def meaning_of(error: grpc.aio.AioRpcError, subject: str) -> EtcdError:
    """Translate a gRPC status: is it worth another endpoint, and may the request have been applied?"""
    code, details = error.code(), error.details() or "no details"
    text = f"{subject}: {code.name}: {details}"
    if _HANDSHAKE_FAILED in details:
        text += "; etcd or this process does not accept the other's certificate"
    if "requested lease not found" in details:
        return LeaseGone(text)
    if any(mark in details for mark in _NEVER_APPLIED):
        return EtcdUnavailable(text)
    return EtcdUncertain(text) if code in _TRANSIENT else EtcdRefused(text)


async def stream_failure(stream: grpc.aio.StreamStreamCall[Request, Response]) -> grpc.aio.AioRpcError:
    """The error with which a stream ended, also when it ended in silence."""
    return grpc.aio.AioRpcError(
        await stream.code(),
        await stream.initial_metadata(),
        await stream.trailing_metadata(),
        await stream.details() or "the stream ended without an answer",
    )
