"""The cluster's face over HTTP: routes, status codes and limits.

Owns what is answered when: only the leader answers for the cluster, a standby names the leader. Every error
is JSON with one line. Must never change the machine but by `Service.ask`.
"""

import logging
import socket
from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web
from prometheus_client import CollectorRegistry

from blockyard.common.http_server import LINE, HttpServer, debug_stays_here, refusal
from blockyard.common.logs import fields
from blockyard.common.metrics.exposition import render
from blockyard.common.metrics.leader import ROUTE
from blockyard.leader import answers
from blockyard.leader.answers import BadQuery, StandsBy, reply
from blockyard.leader.core.invariants import InvariantBroken
from blockyard.leader.order_faces import NotTaken, OrderFaces
from blockyard.leader.service import Service

_BODY_PER_KEY = 72
_BODY_BASE = 4096
_LINE_PER_KEY = 67
"""64 digits, and a comma that may be written as %2C."""
_LINE_KEYS = 4096
"""Keys for which a request line has room at most; more go into a body."""
_ROUTES = frozenset(ROUTE.values) - {"other"}

log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class MatchQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Body of POST /v1/match."""

    keys: list[str]


class Faces:
    """The application; `registry` holds what /metrics shows."""

    def __init__(self, service: Service, registry: CollectorRegistry) -> None:
        self._service = service
        self._registry = registry
        self._orders = OrderFaces(service)
        self._max_keys = service.config.match_max_keys
        self._max_line = LINE + _LINE_PER_KEY * min(self._max_keys, _LINE_KEYS)
        self._max_body = _BODY_BASE + _BODY_PER_KEY * self._max_keys

    async def serve(self, listener: socket.socket) -> HttpServer:
        """Serve on a listening socket; returns what to stop in the end."""
        server = HttpServer(self._application(), self._max_line, "; POST /v1/match takes its keys in the body")
        await server.start(listener)
        return server

    def _application(self) -> web.Application:
        """All routes, with bodies bounded by the largest match query allowed."""
        application = web.Application(middlewares=[self._as_json, debug_stays_here], client_max_size=self._max_body)
        application.add_routes(
            [
                web.get("/v1/workers", self._workers),
                web.get("/v1/where", self._where),
                web.get("/v1/match", self._match_query),
                web.post("/v1/match", self._match_body),
                *self._orders.routes(),
                web.get("/metrics", self._metrics),
                web.get("/healthz", self._healthz),
                web.get("/readyz", self._readyz),
                web.get("/debug/invariants", self._invariants),
            ]
        )
        return application

    async def _workers(self, request: web.Request) -> web.Response:
        self._require_leader()
        return reply(answers.workers(self._service))

    async def _where(self, request: web.Request) -> web.Response:
        self._require_leader()
        if "key" not in request.query:
            raise BadQuery("key: must be given, as /v1/where?key=<64 hex digits>")
        key = answers.parse_key(request.query["key"])
        self._service.counters.add("blockyard_leader_where_lookups_total")
        return reply(answers.where(self._service, key))

    async def _match_query(self, request: web.Request) -> web.Response:
        self._require_leader()
        if "keys" not in request.query:
            raise BadQuery("keys: must be given, as /v1/match?keys=<64 hex digits>,…")
        return self._match(request.query["keys"].split(","))

    async def _match_body(self, request: web.Request) -> web.Response:
        self._require_leader()
        try:
            query = msgspec.json.decode(await request.read(), type=MatchQuery)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadQuery(f'body: must be {{"keys": ["<64 hex digits>", …]}}: {error}') from None
        return self._match(query.keys)

    def _match(self, texts: list[str]) -> web.Response:
        # Leadership may have gone while the body came in.
        self._require_leader()
        keys = answers.parse_keys(texts, self._max_keys)
        self._service.counters.add("blockyard_leader_match_keys_total", len(keys))
        return reply(answers.match(self._service, keys))

    async def _metrics(self, request: web.Request) -> web.Response:
        body, content_type = render(self._registry)
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def _healthz(self, request: web.Request) -> web.Response:
        return reply({"alive": True, "version": self._service.version})

    async def _readyz(self, request: web.Request) -> web.Response:
        answer = answers.readiness(self._service)
        return reply(answer, 200 if answer["ready"] else 503)

    async def _invariants(self, request: web.Request) -> web.Response:
        """Goes through the whole index; workers and queries wait meanwhile, so it is for finding faults."""
        try:
            self._service.core.validate()
        except InvariantBroken as error:
            return reply({"broken": str(error)}, 500)
        return reply({"broken": None})

    def _require_leader(self) -> None:
        if not self._service.leading():
            raise StandsBy

    @web.middleware
    async def _as_json(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Every failure is an answer with one line, and every answer is counted."""
        response: web.StreamResponse
        try:
            response = await handler(request)
        except BadQuery as error:
            response = _error(400, str(error))
        except NotTaken as error:
            response = _error(error.status, error.line)
        except StandsBy:
            response = self._standby_answer()
        except web.HTTPRequestEntityTooLarge:
            response = _error(413, f"body: larger than {self._max_body} bytes, enough for {self._max_keys} keys")
        except web.HTTPException as error:
            response = refusal(request, error)
        except ConnectionError:
            response = _error(400, "body: the client left before it was whole")
        except Exception:
            log.exception("request failed", extra=fields(path=request.path[:200]))
            response = _error(500, f"{request.method} {request.path[:200]}: this is a bug; the log says more")
        route = request.path if request.path in _ROUTES else "other"
        self._service.counters.add(
            "blockyard_leader_http_requests_total", route=route, code=f"{response.status // 100}xx"
        )
        return response

    def _standby_answer(self) -> web.Response:
        leader = answers.other_leader(self._service)
        if leader is None:
            return reply({"error": f"no leader is known: {self._service.lost_reason}", "leader": None}, 503)
        return reply({"error": f"not the leader; ask {leader['http']}", "leader": leader}, 503)


def _error(status: int, line: str) -> web.Response:
    return reply({"error": line}, status)
