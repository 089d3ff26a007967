"""What is wrong with a message that decodes: limits over several of its fields. Owns nothing; changes
nothing.
"""

from blockyard.common.identity import DIGEST_BYTES
from blockyard.common.messages.attach import MAX_KEYS, Acquire, Fill, FromEngine, Release, Resolve, Run


def fault(message: FromEngine) -> str:
    """One line saying what is wrong; empty when nothing is."""
    if isinstance(message, Acquire | Fill):
        return _runs_fault(message.runs)
    if isinstance(message, Release | Resolve):
        return _blob_fault(message.keys)
    return ""


def _runs_fault(runs: list[Run]) -> str:
    for run in runs:
        ragged = _blob_fault(run.keys)
        if ragged:
            return ragged
        if len(run.parent) not in (0, DIGEST_BYTES):
            return f"a run's parent has {len(run.parent)} bytes, must have 0 or {DIGEST_BYTES}"
    keys = sum(len(run.keys) for run in runs) // DIGEST_BYTES
    return f"{keys} keys in one message, the limit is {MAX_KEYS}" if keys > MAX_KEYS else ""


def _blob_fault(blob: bytes) -> str:
    if len(blob) % DIGEST_BYTES:
        return f"key blob has {len(blob)} bytes, not a multiple of {DIGEST_BYTES}"
    return ""
