"""Why an engine serves without its worker. Owns the bounded words that metrics carry, and their causes."""

from typing import NamedTuple

NO_WORKER = "no-worker"
VERSION = "version"
FINGERPRINT = "fingerprint"
SIZE = "size"
LAYOUT = "layout"
TIMEOUT = "timeout"
REFUSED = "refused"

_OF_REFUSAL = {"version": VERSION, "fingerprint": FINGERPRINT, "size": SIZE, "shape": LAYOUT}


class Reason(NamedTuple):
    """`word` for metrics, `detail` one line for people."""

    word: str
    detail: str


class Detached(Exception):
    """There is no session, or it ended while an answer was awaited: serve without the worker."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(f"{reason.word}: {reason.detail}")
        self.reason = reason


def of_refusal(code: str, detail: str) -> Reason:
    """The reason behind a worker's refusal."""
    return Reason(_OF_REFUSAL.get(code, REFUSED), f"worker refused ({code}): {detail}")
