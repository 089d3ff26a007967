"""One client of one etcd cluster: keys, leases and watches over one connection, whose life it owns."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from blockyard.common.etcd.connection import DEFAULT_TIMEOUT_S, Connection
from blockyard.common.etcd.endpoints import EtcdTls
from blockyard.common.etcd.kv import Keys
from blockyard.common.etcd.lease import Leases
from blockyard.common.etcd.watch import Watch


class EtcdClient:
    """Use inside `async with`, from one event loop. `timeout_s` is the deadline of a call that names none."""

    def __init__(
        self,
        endpoints: str | Sequence[str],
        *,
        tls: EtcdTls | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        self._connection = Connection(endpoints, tls=tls, timeout_s=timeout_s)
        self.keys = Keys(self._connection)
        self.leases = Leases(self._connection)

    @property
    def endpoints(self) -> tuple[str, ...]:
        return self._connection.endpoints

    def watch(self, key: str, *, prefix: bool = False, from_revision: int | None = None) -> Watch:
        return Watch(self._connection, key, prefix=prefix, from_revision=from_revision)

    async def __aenter__(self) -> EtcdClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._connection.close()
