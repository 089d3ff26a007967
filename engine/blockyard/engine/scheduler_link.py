"""One session of the scheduler: sends without waiting, reads only grants. Every trouble is a Detached with its reason.

Owns what the socket does not take at once: a step of many requests asks faster than a busy worker reads. It goes out
with the next call; a worker that reads nothing for long, or lets too much pile up, is taken for stuck.
"""

import select
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeAlias

from blockyard.common.codec import FrameRefused, encode
from blockyard.common.link import LinkClosed, LinkTimeout
from blockyard.common.messages import attach
from blockyard.engine.detached import NO_WORKER, REFUSED, TIMEOUT, Detached, Reason
from blockyard.engine.session import Session, hung_up

UNSENT_SECONDS = 1.0
"""As long as for an answer that does not come."""

MAX_UNSENT = 8 << 20
"""Bytes; what the worker's side allows too. The questions of 1,000 requests take less, with 200 keys each."""


class SchedulerLink:
    """`number` counts this engine's attachments, so that nothing of an earlier one is mistaken for the
    present's.
    """

    Outgoing: TypeAlias = (
        attach.Hints
        | attach.Acquire
        | attach.Release
        | attach.Fill
        | attach.Finish
        | attach.Forget
        | attach.EngineCounters
        | attach.Bye
    )

    def __init__(self, session: Session, number: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.number = number
        self.pin_ttl = session.welcome.pin_ttl_ms / 1000
        self.takes_hints = session.welcome.protocol >= attach.HINTS_SINCE
        self._link = session.link
        self._clock = clock
        self._unsent = bytearray()
        self._moved_at = 0.0

    def fileno(self) -> int:
        """Descriptor of the socket."""
        return self._link.fileno()

    def hung_up(self) -> bool:
        """Whether the worker is gone."""
        return hung_up(self._link.fileno())

    def send(self, message: Outgoing) -> None:
        """Send one message now or, while the worker does not read, later; raises Detached."""
        try:
            frame = encode(message, attach.MAX_FRAME)
        except FrameRefused as error:
            raise Detached(_reason_of(error)) from None
        if not self._unsent:
            self._moved_at = self._clock()
        self._unsent += frame
        self.push()

    def push(self) -> None:
        """Send what the socket takes of what is left; raises Detached when it has taken nothing for too long."""
        while self._unsent:
            try:
                taken = self._link.offer(self._unsent)
            except LinkClosed as error:
                raise Detached(_reason_of(error)) from None
            if not taken:
                self._check_unsent()
                return
            del self._unsent[:taken]
            self._moved_at = self._clock()

    def receive(self, timeout: float) -> attach.Grant | None:
        """The next grant within `timeout`, else None; raises Detached."""
        deadline = self._clock() + timeout
        while True:
            self.push()
            left = max(0.0, deadline - self._clock())
            grant = self._receive(0.0 if self._unsent else left)
            if grant is not None or not self._unsent or not left:
                return grant
            self._await_either(left)

    def goodbye(self) -> None:
        """Tell the worker that nothing is in flight any more, if it reads."""
        with suppress(Detached):
            self.send(attach.Bye())

    def close(self) -> None:
        """Close the socket."""
        self._link.close()

    def _receive(self, timeout: float) -> attach.Grant | None:
        try:
            message = self._link.receive(timeout)
        except LinkTimeout:
            return None
        except (LinkClosed, FrameRefused) as error:
            raise Detached(_reason_of(error)) from None
        if isinstance(message, attach.Grant):
            return message
        if isinstance(message, attach.Closing):
            raise Detached(Reason(NO_WORKER, f"worker is closing: {message.reason}"))
        raise Detached(Reason(REFUSED, f"worker sent a {type(message).__name__} to a scheduler"))

    def _check_unsent(self) -> None:
        unsent, stuck = len(self._unsent), self._clock() - self._moved_at
        if unsent > MAX_UNSENT or stuck > UNSENT_SECONDS:
            raise Detached(Reason(TIMEOUT, f"the worker does not read: {unsent} bytes unsent for {stuck:.3f} s"))

    def _await_either(self, timeout: float) -> None:
        """Until there is something to read, or room to send."""
        poll = select.poll()
        poll.register(self._link.fileno(), select.POLLIN | select.POLLOUT)
        poll.poll(timeout * 1000)


def _reason_of(error: LinkClosed | FrameRefused) -> Reason:
    return Reason(NO_WORKER if isinstance(error, LinkClosed) else REFUSED, str(error))
