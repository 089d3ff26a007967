"""The worker's HTTP endpoints: /metrics, /healthz, /readyz, /debug/story, /debug/invariants.

Owns the listener and the shape of the answers. Must never change anything: each endpoint only reads.
"""

import socket
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from aiohttp import web
from prometheus_client import CollectorRegistry

from blockyard.common.config import Address
from blockyard.common.errors import ConfigError
from blockyard.common.http_server import HttpServer, debug_stays_here, refusals_in_json
from blockyard.common.identity import DIGEST_BYTES
from blockyard.common.metrics.exposition import render
from blockyard.worker.core.invariants import InvariantBroken
from blockyard.worker.core.story import Transition
from blockyard.worker.health import Health


class Faces:
    """Use inside `async with`; `address` is where it listens."""

    def __init__(
        self,
        listen: Address,
        registry: CollectorRegistry,
        health: Health,
        story: Callable[[bytes], Sequence[Transition]],
        validate: Callable[[], None],
    ) -> None:
        self._listen = listen
        self._registry = registry
        self._health = health
        self._story = story
        self._validate = validate
        self.address = listen
        application = web.Application(middlewares=[refusals_in_json, debug_stays_here])
        application.add_routes(
            [
                web.get("/metrics", self._metrics),
                web.get("/healthz", self._alive),
                web.get("/readyz", self._ready),
                web.get("/debug/story", self._tell_story),
                web.get("/debug/invariants", self._check),
            ]
        )
        self._server = HttpServer(application)

    async def __aenter__(self) -> "Faces":
        family = socket.AF_INET6 if ":" in self._listen.host else socket.AF_INET
        try:
            listener = socket.create_server((self._listen.host, self._listen.port), family=family)
        except OSError as error:
            raise ConfigError(
                f"metrics_listen = {self._listen}: {error.strerror}; right: a free port of this machine"
            ) from error
        self.address = Address(self._listen.host, listener.getsockname()[1])
        await self._server.start(listener)
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self._server.stop()

    async def _metrics(self, request: web.Request) -> web.Response:
        body, content_type = render(self._registry)
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def _alive(self, request: web.Request) -> web.Response:
        return web.json_response({"alive": True})

    async def _ready(self, request: web.Request) -> web.Response:
        """Ready while engines can attach: with no leader and no etcd too, which is told but is no failure."""
        degraded = [
            {"part": trouble.part, "reason": trouble.reason, "since": _utc(trouble.since)}
            for trouble in self._health.troubles()
        ]
        ready = self._health.serving
        return web.json_response({"ready": ready, "degraded": degraded}, status=200 if ready else 503)

    async def _check(self, request: web.Request) -> web.Response:
        """Goes through all books; engines wait meanwhile, so it is for tests and for finding faults."""
        try:
            self._validate()
        except InvariantBroken as error:
            return web.json_response({"broken": str(error)}, status=500)
        return web.json_response({"broken": None})

    async def _tell_story(self, request: web.Request) -> web.Response:
        text = request.query.get("key", "")
        try:
            key = bytes.fromhex(text)
        except ValueError:
            key = b""
        if len(key) != DIGEST_BYTES:
            detail = f"key is {text[:80]!r}; right: {2 * DIGEST_BYTES} hex digits"
            return web.json_response({"error": detail}, status=400)
        story = [
            {
                "step": one.step,
                "before": one.before.name,
                "event": one.event.name,
                "after": one.after.name,
                "slot": one.slot,
                "generation": one.generation,
            }
            for one in self._story(key)
        ]
        return web.json_response({"key": key.hex(), "story": story})


def _utc(seconds: float) -> str:
    """As the leader writes its times."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
