"""An HTTP server for faces that must stay clear: what cannot be parsed gets JSON with one line too, and debug
pages are for this machine alone.

Owns the listening socket and aiohttp's own error answers. Must never know a route.
"""

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong

from blockyard.common.logs import fields

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

LINE = 8190
"""Bytes of a request line or header unless the application needs more."""

_SHOWN = 200

log = logging.getLogger(__name__)


class HttpServer:
    """Serves one application on a socket that its caller made; `too_long` says what to do about a long line."""

    def __init__(self, application: web.Application, max_line: int = LINE, too_long: str = "") -> None:
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=2.0)
        self._max_line = max_line
        self._too_long = too_long
        self._server: asyncio.Server | None = None

    async def start(self, listener: socket.socket) -> None:
        """Answer on this listening socket from now on."""
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._connection, sock=listener)

    async def stop(self) -> None:
        """Take no more requests, and end those under way."""
        if self._server is not None:
            self._server.close()
        await self._runner.cleanup()

    def _connection(self) -> web.RequestHandler:
        manager = self._runner.server
        assert manager is not None, "the server has not been started"
        return _Connection(manager, self._max_line, self._too_long)


class _Connection(web.RequestHandler):
    """aiohttp's connection, with errors in our words."""

    __slots__ = ("_too_long",)

    def __init__(self, manager: web.Server, max_line: int, too_long: str) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(manager, loop=loop, max_line_size=max_line, access_log=None)  # type: ignore[arg-type]
        self._too_long = too_long

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """What no handler has answered: noise, mostly, so it leaves one quiet line in the log."""
        if isinstance(exc, LineTooLong):
            words = f"request: a line or header is longer than {exc.args[1]} bytes{self._too_long}"
        elif status < 500:
            words = f"request: cannot be read: {' '.join(str(message).split())[:_SHOWN]}"
        else:
            words = "request: this is a bug; the log says more"
        log.log(
            logging.DEBUG if status < 500 else logging.ERROR,
            "request not served",
            extra=fields(peer=request.remote, status=status, error=exc),
            exc_info=exc if status >= 500 else None,
        )
        if request.writer.output_size > 0:
            raise ConnectionError("a part of the answer is out already")
        response = web.json_response({"error": words}, status=status)
        response.force_close()
        return response


def refusal(request: web.Request, error: web.HTTPException) -> web.Response:
    """aiohttp's refusal of a request, such as an unknown path, as JSON with one line."""
    line = f"{request.method} {request.path[:_SHOWN]}: {error.reason}"
    response = web.json_response({"error": line}, status=error.status)
    if "Allow" in error.headers:
        response.headers["Allow"] = error.headers["Allow"]
    return response


@web.middleware
async def refusals_in_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """For an application whose own handlers raise none."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        return refusal(request, error)


@web.middleware
async def debug_stays_here(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Pages below /debug tell much and take long: only this machine may ask for them, wherever we listen."""
    if request.path.startswith("/debug/") and not is_loopback(request.remote):
        line = f"{request.path[:_SHOWN]}: answered on loopback connections only; yours comes from {request.remote}"
        return web.json_response({"error": line}, status=403)
    return await handler(request)


def is_loopback(address: str | None) -> bool:
    """Whether a peer's address is of this machine's loopback."""
    try:
        ip = ipaddress.ip_address((address or "").partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(ip, "ipv4_mapped", None)
    return bool((mapped or ip).is_loopback)
