"""What code a run exercises, as one digest: results of many runs add up only while it stays. Owns what counts."""

from __future__ import annotations

import hashlib
from pathlib import Path

import blockyard.common.codec
import blockyard.engine.session
import blockyard.leader.core.leader
import blockyard.worker.core.worker
import blockyard.worker.disk.device
import blockyard.worker.election_key

_HEX_DIGITS = 12
_COMMON = Path(blockyard.common.codec.__file__).parent
_OF_COMMON = (
    "codec",
    "config/address",
    "digests",
    "fencing",
    "frame_protocol",
    "identity",
    "link",
    "slot_table",
    "messages/*",
    "etcd/*",
)


def code_digest() -> str:
    """Of the simulator and of the production modules that it runs, numbers for metrics left out; hex digits."""
    total = hashlib.sha256()
    for name, path in sorted(sources().items()):
        total.update(name.encode() + b"\0" + path.read_bytes())
    return total.hexdigest()[:_HEX_DIGITS]


def first_seed(digest: str) -> int:
    """Where the seeds of this code begin: fresh for each change of it, and the same for all who run it."""
    return int(digest[:10], 16)


def sources() -> dict[str, Path]:
    """The files by a name that is the same on every machine."""
    found = [path for pattern in _OF_COMMON for path in _COMMON.glob(f"{pattern}.py")]
    found += Path(blockyard.worker.core.worker.__file__).parent.rglob("*.py")
    found.append(Path(blockyard.worker.election_key.__file__))
    found += Path(blockyard.worker.disk.device.__file__).parent.rglob("*.py")
    found += Path(blockyard.leader.core.leader.__file__).parent.rglob("*.py")
    found += Path(blockyard.engine.session.__file__).parent.glob("*.py")
    named = {path.as_posix().rpartition("/blockyard/")[2]: path for path in found}
    return named | {f"sim/{path.name}": path for path in _simulator()}


def _simulator() -> list[Path]:
    """What runs, not what tests it."""
    return [path for path in Path(__file__).parent.glob("*.py") if not path.name.startswith("test_")]
