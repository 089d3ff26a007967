"""Orders over HTTP: prefetch, purge, drain, and the book of orders.

Owns who may give them and what a request must look like. HTTP has no login, so unless `remote_orders` is set only
connections of this machine's loopback may; and only with a content type that a browser does not send to other sites
unasked. Must never know how an order is carried out.
"""

from typing import TypeVar

import msgspec
from aiohttp import web

from blockyard.common.http_server import is_loopback
from blockyard.common.identity import DIGEST_BYTES
from blockyard.common.messages.cluster import MAX_MS
from blockyard.leader import answers
from blockyard.leader.answers import BadQuery, Json
from blockyard.leader.core.requests import Denied, DrainAsked, Prefetch, PurgeAsked, Request, UndrainAsked
from blockyard.leader.service import Service

SHORTEST_S, LONGEST_S = 0.1, MAX_MS / 1000
_STATUS = {"unknown": 404, "conflict": 409, "busy": 429}
_CAUSE = 80

Body = TypeVar("Body", bound=msgspec.Struct)


class NotTaken(Exception):
    """A request that is not carried out: the status, and one line."""

    def __init__(self, status: int, line: str) -> None:
        super().__init__(line)
        self.status = status
        self.line = line


class PrefetchBody(msgspec.Struct, forbid_unknown_fields=True):
    """Body of POST /v1/prefetch."""

    worker: str
    keys: list[str]
    deadline_s: float = 60.0


class PurgeBody(msgspec.Struct, forbid_unknown_fields=True):
    """Body of POST /v1/purge: exactly one of the first three."""

    keys: list[str] = []
    fingerprint: str = ""
    model: str = ""
    deadline_s: float = 60.0


class DrainBody(msgspec.Struct, forbid_unknown_fields=True):
    """Body of POST /v1/drain."""

    worker: str


class OrderFaces:
    """Handlers; whoever serves them turns BadQuery and NotTaken into answers."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._max_keys = service.config.match_max_keys

    def routes(self) -> list[web.RouteDef]:
        """What to serve."""
        return [
            web.post("/v1/prefetch", self._prefetch),
            web.post("/v1/purge", self._purge),
            web.post("/v1/drain", self._drain),
            web.delete("/v1/drain", self._undrain),
            web.get("/v1/orders", self._orders),
        ]

    async def _prefetch(self, request: web.Request) -> web.Response:
        body = await self._body(request, PrefetchBody, '{"worker": "<node id>", "keys": ["<64 hex digits>", …]}')
        keys = tuple(answers.parse_keys(body.keys, self._max_keys))
        return self._ask(Prefetch(body.worker, keys, _deadline(body.deadline_s)))

    async def _purge(self, request: web.Request) -> web.Response:
        right = '{"keys": ["<64 hex digits>", …]}, {"fingerprint": "<64 hex digits>"} or {"model": "<name>"}'
        body = await self._body(request, PurgeBody, right)
        given = [name for name in ("keys", "fingerprint", "model") if getattr(body, name)]
        if len(given) != 1:
            raise BadQuery(f"body: must be {right}: exactly one of them, and has {', '.join(given) or 'none'}")
        keys = tuple(answers.parse_keys(body.keys, self._max_keys)) if body.keys else ()
        fingerprint = _fingerprint(body.fingerprint) if body.fingerprint else b""
        return self._ask(PurgeAsked(keys, fingerprint, body.model, _deadline(body.deadline_s)))

    async def _drain(self, request: web.Request) -> web.Response:
        body = await self._body(request, DrainBody, '{"worker": "<node id>"}')
        return self._ask(DrainAsked(body.worker))

    async def _undrain(self, request: web.Request) -> web.Response:
        self._may_order(request)
        if not request.query.get("worker"):
            raise BadQuery("worker: must be given, as /v1/drain?worker=<node id>")
        return self._ask(UndrainAsked(request.query["worker"]))

    async def _orders(self, request: web.Request) -> web.Response:
        if not self._service.leading():
            raise answers.StandsBy
        cause = request.query.get("cause", "")
        return answers.reply(answers.orders(self._service, cause[:_CAUSE]))

    async def _body(self, request: web.Request, kind: type[Body], right: str) -> Body:
        self._may_order(request)
        if request.content_type != "application/json":
            raise BadQuery(f"content type {request.content_type[:_CAUSE]!r}: must be application/json")
        try:
            return msgspec.json.decode(await request.read(), type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadQuery(f"body: must be {right}: {error}") from None

    def _may_order(self, request: web.Request) -> None:
        if not self._service.config.remote_orders and not is_loopback(request.remote):
            where = "orders are taken on loopback connections only, unless remote_orders is set"
            raise NotTaken(403, f"{where}; yours comes from {request.remote}")

    def _ask(self, asked: Request) -> web.Response:
        answer = self._service.ask(asked)
        if answer is None:
            raise answers.StandsBy
        if isinstance(answer, Denied):
            raise NotTaken(_STATUS[answer.code], answer.detail)
        counts: Json = dict(answer.counts)
        return answers.reply(answers.framed(self._service, {"cause": answer.cause, **counts}), 202)


def _deadline(seconds: float) -> float:
    if not SHORTEST_S <= seconds <= LONGEST_S:
        raise BadQuery(f"deadline_s {seconds:g}: must be seconds from {SHORTEST_S:g} to {LONGEST_S:g}")
    return seconds


def _fingerprint(text: str) -> bytes:
    try:
        return answers.parse_key(text)
    except BadQuery:
        shown = f"fingerprint {text[:_CAUSE]!r}"
        raise BadQuery(f"{shown}: must be {2 * DIGEST_BYTES} hex digits, and has {len(text)} characters") from None
