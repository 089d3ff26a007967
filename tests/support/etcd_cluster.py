"""A real etcd of three members on loopback ports, for tests. Owns who its members are; each is an EtcdServer."""

from __future__ import annotations

from contextlib import ExitStack

from support.closing import Closing
from support.etcd_server import EtcdServer, ServerTls


class EtcdCluster(Closing):
    """`with EtcdCluster() as etcd:` gives a cluster that answers at `etcd.endpoints`; members are killed one by one."""

    def __init__(self, *, tls: ServerTls | None = None) -> None:
        self.members = [EtcdServer(tls=tls, name=f"member-{number}") for number in range(3)]
        everyone = ",".join(f"{member.name}={member.peer}" for member in self.members)
        for member in self.members:
            member.initial_cluster = everyone
        self._left = ExitStack()

    @property
    def endpoints(self) -> str:
        return ",".join(member.endpoint for member in self.members)

    def __enter__(self) -> EtcdCluster:
        with ExitStack() as stack:
            for member in self.members:
                stack.push(member)
            # None is healthy before most are there.
            for member in self.members:
                member.spawn()
            for member in self.members:
                member.wait_healthy()
            self._left = stack.pop_all()
        return self

    def close(self) -> None:
        self._left.close()
