"""Which requests have hints, and of which the worker knows in this session.

Owns that each is told once a session, before the request's first question or store. Must never send. There are as many
entries as requests with hints that the engine has taken in.
"""

from blockyard.common.messages.attach import Hints


class HintDesk:
    """Requests by the name that messages give them."""

    def __init__(self) -> None:
        self._hints: dict[str, Hints] = {}
        self._told: set[str] = set()

    def put(self, hints: Hints) -> None:
        """A request came with these."""
        self._hints[hints.request] = hints
        self._told.discard(hints.request)

    def take(self, request: str) -> Hints | None:
        """What is to be told now, if anything; it counts as told."""
        if request in self._told:
            return None
        hints = self._hints.get(request)
        if hints is not None:
            self._told.add(request)
        return hints

    def finished(self, request: str) -> None:
        """The worker has been told that the request is over; if it goes on all the same, it is told anew."""
        self._told.discard(request)

    def drop(self, request: str) -> bool:
        """The request is over; whether the worker still has to be told."""
        self._hints.pop(request, None)
        told = request in self._told
        self._told.discard(request)
        return told

    def session_ended(self) -> None:
        """Whoever attaches next knows nothing."""
        self._told.clear()
