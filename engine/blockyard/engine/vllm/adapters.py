"""Which LoRA adapter a request is computed with: a digest of the adapter's files, not its name.

Owns when such a digest may be trusted. vLLM reads an adapter's files whenever it has to, again and again if it holds
few, and says nothing of it. Files that have not changed since before this engine could have read any are what it has
read, whenever that was. Must never load a tensor.
"""

import logging
import time
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

from blockyard.common.identity import DIGEST_BYTES, Fingerprint
from blockyard.engine.vllm import weights

SETTLED_SECONDS = 2.0
"""Files must be older than the engine by so much: a file system's clock is coarse."""

logger = logging.getLogger(__name__)

MAX_ADAPTERS = 4096
"""As many are remembered; those beyond take no part."""

Name = tuple[str, int, str]
"""Name, number and path that vLLM knows an adapter by."""

Signature = tuple[tuple[str, int, int, int], ...]


class Adapter(Protocol):
    """What vLLM says of a request's adapter."""

    lora_name: str
    lora_int_id: int
    lora_path: str


@dataclass(frozen=True, slots=True)
class _Seen:
    signature: Signature
    identity: bytes


class AdapterBook:
    """Adapters of one start of one engine; `instance` names it. To be made before any adapter can be loaded."""

    def __init__(self, instance: str) -> None:
        self._instance = instance
        self._since = time.time() - SETTLED_SECONDS
        self._seen: dict[Name, _Seen] = {}
        self._out: set[Name] = set()

    def world(self, base: Fingerprint, adapter: Adapter) -> Fingerprint | None:
        """The world of requests with this adapter; None when nobody can tell what they are computed with.

        Reads the adapter's files when it is first seen, as vLLM does to load it; later only their dates.
        """
        name = (adapter.lora_name, adapter.lora_int_id, adapter.lora_path)
        full = len(self._seen) + len(self._out) >= MAX_ADAPTERS
        if name in self._out or (full and name not in self._seen):
            return None
        try:
            signature = _signature(Path(adapter.lora_path))
            seen = self._seen.get(name) or self._see(name, signature)
        except OSError as error:
            self._leave_out(name, str(error))
            return None
        if seen.signature != signature:
            self._leave_out(name, "its files have changed")
            return None
        return blake2b(seen.identity, digest_size=DIGEST_BYTES, key=base, person=b"blockyard-lora").digest()

    def _see(self, name: Name, signature: Signature) -> _Seen:
        digest = weights.local_digest(Path(name[2])) if signature else None
        if digest is not None and max(changed for *_, changed in signature) < self._since * 1e9:
            seen = _Seen(signature, digest.encode())
        else:
            why = "it is no folder with weights" if digest is None else "its files are newer than the engine"
            logger.warning("Blockyard: blocks of adapter %s are shared with no other engine: %s", name[0], why)
            seen = _Seen(signature, repr((self._instance, *name)).encode())
        self._seen[name] = seen
        return seen

    def _leave_out(self, name: Name, why: str) -> None:
        logger.warning("Blockyard: adapter %s takes no part until the engine starts anew: %s", name[0], why)
        self._out.add(name)


def _signature(path: Path) -> Signature:
    """Name, inode, size and last change of the folder (and of a link to it) and of each file in it."""
    if not path.is_dir():
        return ()
    found = [(".", path.lstat()), ("..", path.stat())]
    found += [(file.name, file.stat()) for file in sorted(path.iterdir()) if file.is_file()]
    return tuple((name, stat.st_ino, stat.st_size, stat.st_ctime_ns) for name, stat in found)
