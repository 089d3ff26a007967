"""HTTP requests that nobody should send, beside some right ones. Owns their making from one seed.

`batch` has requests that leave the connection in step, sent one after the other without waiting; `last_words` are such
that the connection can only end.
"""

from __future__ import annotations

import random

_KEY = "ab" * 32
_PATHS = ("/healthz", "/readyz", "/metrics", "/v1/workers", f"/v1/where?key={_KEY}", f"/v1/match?keys={_KEY}")
_METHODS = ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "X-ODD")
_BODIES = (
    b"",
    b"{}",
    b"[]",
    b"null",
    b'{"keys": 1}',
    b'{"keys": ["ab"]}',
    b'{"keys": []}',
    b'{"keys": [null]}',
    b"\xff",
)
_HEADERS = (b"X: y", b"Accept: */*", b"Range: bytes=9-1", b"Cookie: a=b;;;=,", b"If-None-Match: *")


class HostileHttp:
    """Everything drawn from one seed."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self._last_words = (
            self._noise,
            self._mutated,
            self._long_line,
            self._many_headers,
            self._lying_length,
            self._bad_chunks,
            self._half,
        )

    def batch(self, size: int) -> bytes:
        """So many whole requests, the last of which asks for the connection's end."""
        requests = [self._whole() for _ in range(size - 1)]
        return b"".join([*requests, request("GET", "/healthz", b"", b"Connection: close")])

    def last_words(self) -> bytes:
        """One request, or none, after which there is nothing more to say."""
        return self._draw.choice(self._last_words)()

    def _whole(self) -> bytes:
        """Any method on any path, with any body."""
        draw = self._draw
        if draw.random() < 0.3:
            return request("POST", "/v1/match", self._json())
        path = draw.choice((*_PATHS, self._odd_path()))
        method = "GET" if draw.random() < 0.6 else draw.choice(_METHODS[:4])
        return request(method, path, draw.choice(_BODIES) if method != "GET" else b"", *draw.choices(_HEADERS, k=2))

    def _odd_path(self) -> str:
        draw = self._draw
        words = ("/v1/where?key=", "/v1/match?keys=", "/debug/story?key=", "/v1/", "/%00", "/%zz?%", "/..//../")
        return draw.choice(words) + "".join(draw.choices("abz0,%&=;+/", k=draw.randrange(80)))

    def _json(self) -> bytes:
        draw = self._draw
        deep = draw.choice((b"[", b'{"keys":', b'{"a":[')) * draw.randrange(1, 3000)
        many = b'{"keys": [' + b",".join([f'"{_KEY}"'.encode()] * draw.randrange(1, 60)) + b"]}"
        return draw.choice((*_BODIES, deep, many, many[:-3], draw.randbytes(40)))

    def _noise(self) -> bytes:
        return self._draw.randbytes(self._draw.randrange(1, 400)) + b"\r\n\r\n"

    def _mutated(self) -> bytes:
        data = bytearray(self._whole())
        for _ in range(self._draw.randrange(1, 6)):
            data[self._draw.randrange(len(data))] = self._draw.randrange(256)
        return bytes(data)

    def _long_line(self) -> bytes:
        return b"GET /" + b"x" * self._draw.randrange(8_000, 600_000) + b" HTTP/1.1\r\n\r\n"

    def _many_headers(self) -> bytes:
        one = b"X-%d: " + b"y" * self._draw.choice((1, 100, 9000))
        lines = [one % number for number in range(self._draw.randrange(1, 300))]
        return b"GET /healthz HTTP/1.1\r\n" + b"\r\n".join(lines) + b"\r\n\r\n"

    def _lying_length(self) -> bytes:
        length = self._draw.choice((b"-1", b"99999999999", b"1e9", b"5, 6", b"0x10", b" ", b"18446744073709551617"))
        both = self._draw.choice((b"", b"Transfer-Encoding: chunked\r\n"))
        return b"POST /v1/match HTTP/1.1\r\nHost: x\r\n" + both + b"Content-Length: " + length + b"\r\n\r\n{}"

    def _bad_chunks(self) -> bytes:
        chunks = self._draw.choice(
            (b"zz\r\n{}", b"fffffffffffffffff\r\n{}", b"-5\r\n{}", b"2\r\n{}X\r\n0\r\n\r\n", b"2;" + b"e" * 9000)
        )
        return b"POST /v1/match HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks

    def _half(self) -> bytes:
        data = self._whole()
        return data[: self._draw.randrange(1, len(data))]


def request(method: str, path: str, body: bytes, *headers: bytes) -> bytes:
    """A request that is whole."""
    lines = [f"{method} {path} HTTP/1.1".encode("latin1"), b"Host: x", *headers]
    if body:
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n\r\n" + body
