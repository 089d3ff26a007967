"""Leases: promises to etcd to come back in time. Owns their requests; never decides when to renew one."""

from __future__ import annotations

from dataclasses import dataclass

from blockyard.common.errors import ConfigError
from blockyard.common.etcd.connection import Connection
from blockyard.common.etcd.errors import LeaseGone
from blockyard.common.etcd.wire import etcd_pb2 as pb
from blockyard.common.etcd.wire.methods import LEASE_GRANT, LEASE_KEEP_ALIVE, LEASE_REVOKE


@dataclass(frozen=True, slots=True)
class Lease:
    """`ttl_s` is what etcd granted, which may be more than was asked for."""

    id: int
    ttl_s: int


class Leases:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def grant(self, ttl_s: int, *, timeout_s: float | None = None) -> Lease:
        if ttl_s < 1:
            raise ConfigError(f"etcd lease of {ttl_s} s; right: 1 s or more")
        request = pb.LeaseGrantRequest(TTL=ttl_s)
        response = await self._connection.call(LEASE_GRANT, request, timeout_s=timeout_s)
        return Lease(response.ID, response.TTL)

    async def keep_alive(self, lease_id: int, *, timeout_s: float | None = None) -> Lease:
        """Renew once. Raises LeaseGone if there is nothing left to renew."""
        request = pb.LeaseKeepAliveRequest(ID=lease_id)
        response = await self._connection.call(LEASE_KEEP_ALIVE, request, timeout_s=timeout_s)
        if response.TTL <= 0:
            raise LeaseGone(f"etcd lease {lease_id:x}: expired or revoked")
        return Lease(response.ID, response.TTL)

    async def revoke(self, lease_id: int, *, timeout_s: float | None = None) -> None:
        """End the lease and delete its keys. A lease that is gone already is as good as revoked."""
        request = pb.LeaseRevokeRequest(ID=lease_id)
        try:
            await self._connection.call(LEASE_REVOKE, request, timeout_s=timeout_s)
        except LeaseGone:
            return
