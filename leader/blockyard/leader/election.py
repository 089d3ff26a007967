"""The election: one key in etcd that at most one leader holds, and the cluster's uid.

Owns when this process may act as leader. Must never know what a leader does.
The epoch is the key's create-revision; whoever makes the key first in an empty etcd also writes the uid.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable

import msgspec

from blockyard.common.etcd import (
    EtcdClient,
    EtcdError,
    Held,
    KeyValue,
    LeasedKey,
    LeaseTerms,
    NotHeld,
    Waiting,
)
from blockyard.common.etcd import KeyState as ElectionState
from blockyard.common.fencing import UID_BYTES, Epoch, parse_uid
from blockyard.common.logs import fields

_RETRY_S = 0.3

log = logging.getLogger(__name__)


class LeaderRecord(msgspec.Struct, frozen=True):
    """What the election key says of the leader: where workers link and where HTTP is served.

    The uid is added once it is certain, which also tells whoever saw the key too early to read the uid.
    """

    node: str
    link: str
    http: str
    version: str
    uid: str = ""


class Election:
    """Campaigns while `run` runs. `on_lead` and `on_lost` are called on the loop, in turns."""

    def __init__(
        self,
        client: EtcdClient,
        prefix: str,
        record: LeaderRecord,
        ttl_s: int,
        *,
        alive: Callable[[], bool],
        on_lead: Callable[[Epoch], None],
        on_lost: Callable[[str], None],
    ) -> None:
        self._client = client
        self._uid_key = f"{prefix}/uid"
        self._leader_key = f"{prefix}/leader"
        self._on_lead = on_lead
        self._on_lost = on_lost
        self._record = record
        self._changed = asyncio.Event()
        self._key = LeasedKey(
            client,
            self._leader_key,
            msgspec.json.encode(record),
            terms=LeaseTerms(ttl_s, ttl_s / 4),
            alive=alive,
            on_change=self._note,
        )

    def holds(self, now: float) -> bool:
        """Whether the key is certainly ours at `now`, by this process's own monotonic clock.

        A no is not the end: the next renewal may find that nobody else took it, and is then announced again.
        """
        held = self._key.held(now)
        if not held:
            self._changed.set()
        return held

    @property
    def other(self) -> LeaderRecord | None:
        """The leader that this process stands by for, as far as known."""
        state = self._key.state
        return _record(state.holder) if isinstance(state, Waiting) else None

    @property
    def epoch_seen(self) -> int:
        """Create-revision of the election key as last seen; 0 while none is."""
        match self._key.state:
            case Held(create_revision):
                return create_revision
            case Waiting(holder):
                return holder.create_revision
            case NotHeld():
                return 0

    def healthy(self, now: float) -> bool:
        """Whether etcd answered in time when it was last needed for the key."""
        match self._key.state:
            case Held():
                return self._key.held(now)
            case Waiting():
                return True
            case NotHeld():
                return False

    async def run(self) -> None:
        """Campaign until cancelled; then the key is given up, so that a standby takes over at once."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._key.run(), name="election key")
            tasks.create_task(self._announce_tenures(), name="election tenures")

    def _note(self, state: ElectionState) -> None:
        self._changed.set()
        match state:
            case Held(create_revision):
                log.info("election won", extra=fields(epoch=create_revision))
            case Waiting(holder):
                log.info("stands by", extra=fields(leader=holder.value.decode(errors="replace")))
                self._on_lost("another process leads")
            case NotHeld(reason):
                log.warning("election key not held", extra=fields(reason=reason))
                self._on_lost(reason)

    async def _announce_tenures(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            state = self._key.state
            if isinstance(state, Held) and not await self._announced(state):
                await asyncio.sleep(_RETRY_S)
                self._changed.set()

    async def _announced(self, state: Held) -> bool:
        """Say that this tenure may lead; False if that is not certain now."""
        try:
            uid = await self._cluster_uid()
            # In this order: an etcd that was wiped meanwhile has a new uid and no key of ours, unknown to us so far.
            current = await self._client.keys.get(self._leader_key)
        except EtcdError as error:
            log.warning("cluster uid cannot be read", extra=fields(error=error))
            return False
        if not self._key.confirms(state, current, time.monotonic()):
            return False
        self._key.set_value(msgspec.json.encode(msgspec.structs.replace(self._record, uid=uid.hex())))
        self._on_lead(Epoch(uid, state.create_revision))
        return True

    async def _cluster_uid(self) -> bytes:
        """The uid in etcd, written now if there is none."""
        fresh = secrets.token_hex(UID_BYTES).encode()
        _, found = await self._client.keys.create_if_absent(self._uid_key, fresh)
        try:
            return parse_uid(found.value)
        except ValueError as error:
            raise EtcdError(f"{self._uid_key}: {error}") from None


def _record(kv: KeyValue) -> LeaderRecord | None:
    try:
        return msgspec.json.decode(kv.value, type=LeaderRecord)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
