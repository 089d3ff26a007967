"""A TCP forwarder between a client and a real server. Owns the faults of a network: cut, frozen, one way only."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine

from support.closing import Closing
from support.etcd_server import unused_port

_PATIENCE_S = 20.0


class Forwarder:
    """`async with Forwarder("127.0.0.1:1234") as forwarder:` listens at `forwarder.endpoint`."""

    def __init__(self, target: str) -> None:
        self._host, _, self._port = target.partition(":")
        self._own_port = unused_port()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._requests_flow, self._answers_flow = asyncio.Event(), asyncio.Event()

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self._own_port}"

    async def __aenter__(self) -> Forwarder:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.cut()

    async def open(self) -> None:
        self._requests_flow.set()
        self._answers_flow.set()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._own_port)

    async def cut(self) -> None:
        """Drop all connections, with what they hold, and refuse new ones."""
        assert self._server is not None
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        for task in list(self._serving):
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        await self._server.wait_closed()

    def freeze(self) -> None:
        """Keep all connections and pass nothing on."""
        self._requests_flow.clear()
        self._answers_flow.clear()

    def swallow_answers(self) -> None:
        """Pass requests on and nothing back."""
        self._answers_flow.clear()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with contextlib.suppress(OSError):
            far_reader, far_writer = await asyncio.open_connection(self._host, int(self._port))
            self._writers.add(far_writer)
            await asyncio.gather(
                _pass_on(reader, far_writer, self._requests_flow),
                _pass_on(far_reader, writer, self._answers_flow),
            )
            self._writers.discard(far_writer)
        self._writers.discard(writer)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, flowing: asyncio.Event) -> None:
    while data := await reader.read(65536):
        await flowing.wait()
        writer.write(data)
        await writer.drain()
    writer.close()


class Way(Closing):
    """`with Way("127.0.0.1:1234") as way:` is a forwarder for tests that have no loop; it is open or cut."""

    def __init__(self, target: str) -> None:
        self._forwarder = Forwarder(target)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="forwarder", daemon=True)
        self._thread.start()
        self.open()

    @property
    def endpoint(self) -> str:
        return self._forwarder.endpoint

    def open(self) -> None:
        """Let connections through."""
        self._run(self._forwarder.open())

    def cut(self) -> None:
        """Drop all connections and refuse new ones."""
        self._run(self._forwarder.cut())

    def close(self) -> None:
        self.cut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_PATIENCE_S)
        self._loop.close()

    def _run(self, work: Coroutine[None, None, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(_PATIENCE_S)
