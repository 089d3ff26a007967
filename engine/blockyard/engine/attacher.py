"""The background thread of a scheduler: attaches, hands the session over, and watches for the worker's death.

Owns the breaker and the numbering of sessions. It never reads from a session that it has handed over.
"""

import os
import select
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import msgspec

from blockyard.common.messages.attach import Hello
from blockyard.engine.breaker import Breaker
from blockyard.engine.detached import Detached, Reason
from blockyard.engine.session import Session, open_session, wait_for_hang_up

_WATCH_SECONDS = 0.5


class Attacher:
    """`take_over` gets each session; `watch` says which descriptor to watch, None while detached."""

    def __init__(
        self,
        socket_path: str | Path,
        hello: Hello,
        take_over: Callable[[Session, int], None],
        watch: Callable[[], int | None],
        missed: Callable[[Reason], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.breaker = Breaker()
        self.failures: Counter[str] = Counter()
        self._socket_path = socket_path
        self._hello = hello
        self._take_over = take_over
        self._watch = watch
        self._missed = missed
        self._clock = clock
        self._attachments = 0
        self._stopping = False
        self._waker = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = Thread(target=self._run, name="blockyard-attach", daemon=True)

    def start(self) -> None:
        """Begin attaching."""
        self._thread.start()

    def lost(self, reason: Reason) -> None:
        """The session came to nothing: attach again, after the breaker's delay."""
        self.failures[reason.word] += 1
        self.breaker.failed(self._clock())
        self._wake()

    def stop(self) -> None:
        """Make no further attempt."""
        self._stopping = True
        self._wake()

    def join(self, timeout: float) -> None:
        """Wait for the thread's end; it is left alone past `timeout`, being in a handshake that ends by
        itself.
        """
        if self._thread.ident is not None:
            self._thread.join(timeout)
        if not self._thread.is_alive() and self._waker >= 0:
            os.close(self._waker)
            self._waker = -1

    def _run(self) -> None:
        while not self._stopping:
            descriptor = self._watch()
            if descriptor is not None:
                wait_for_hang_up(descriptor, (self._waker,), _WATCH_SECONDS)
                self._clear_waker()
            elif self.breaker.admits(self._clock()):
                self._attempt()
            else:
                self._pause(self.breaker.retry_at - self._clock())

    def _attempt(self) -> None:
        try:
            session = open_session(self._socket_path, self._hello)
        except Detached as trouble:
            self._missed(trouble.reason)
            self.failures[trouble.reason.word] += 1
            self.breaker.failed(self._clock())
            return
        if self._stopping:
            session.discard()
            return
        welcome = session.welcome
        self._hello = msgspec.structs.replace(self._hello, previous=welcome.session, previous_boot=welcome.boot_id)
        self._attachments += 1
        self._take_over(session, self._attachments)

    def _pause(self, seconds: float) -> None:
        poll = select.poll()
        poll.register(self._waker, select.POLLIN)
        poll.poll(max(0.0, seconds) * 1000)
        self._clear_waker()

    def _wake(self) -> None:
        if self._waker >= 0:
            os.eventfd_write(self._waker, 1)

    def _clear_waker(self) -> None:
        try:
            os.eventfd_read(self._waker)
        except BlockingIOError:
            return
