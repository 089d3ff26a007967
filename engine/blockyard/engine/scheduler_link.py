"""One session of the scheduler: sends within 5 ms, reads only grants. Every trouble is a Detached with its
reason.
"""

from typing import TypeAlias

from blockyard.common.codec import FrameRefused
from blockyard.common.link import LinkClosed, LinkTimeout
from blockyard.common.messages import attach
from blockyard.engine.detached import NO_WORKER, REFUSED, TIMEOUT, Detached, Reason
from blockyard.engine.session import Session, hung_up

SEND_SECONDS = 0.005
"""The most a call may hold up the engine; the socket's buffer takes some 100 frames before."""


class SchedulerLink:
    """`number` counts this engine's attachments, so that nothing of an earlier one is mistaken for the
    present's.
    """

    Outgoing: TypeAlias = (
        attach.Acquire | attach.Release | attach.Fill | attach.Finish | attach.Forget | attach.EngineCounters
    )

    def __init__(self, session: Session, number: int) -> None:
        self.number = number
        self.pin_ttl = session.welcome.pin_ttl_ms / 1000
        self._link = session.link

    def fileno(self) -> int:
        """Descriptor of the socket."""
        return self._link.fileno()

    def hung_up(self) -> bool:
        """Whether the worker is gone."""
        return hung_up(self._link.fileno())

    def send(self, message: Outgoing) -> None:
        """Send one message; raises Detached."""
        try:
            self._link.send(message, SEND_SECONDS)
        except LinkTimeout as error:
            raise Detached(Reason(TIMEOUT, str(error))) from None
        except (LinkClosed, FrameRefused) as error:
            raise Detached(_reason_of(error)) from None

    def receive(self, timeout: float) -> attach.Grant | None:
        """The next grant within `timeout`, else None; raises Detached."""
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

    def goodbye(self) -> None:
        """Tell the worker that nothing is in flight any more."""
        try:
            self._link.send(attach.Bye(), SEND_SECONDS)
        except (LinkClosed, LinkTimeout):
            return

    def close(self) -> None:
        """Close the socket."""
        self._link.close()


def _reason_of(error: LinkClosed | FrameRefused) -> Reason:
    return Reason(NO_WORKER if isinstance(error, LinkClosed) else REFUSED, str(error))
