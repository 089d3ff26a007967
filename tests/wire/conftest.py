"""What tests over real sockets have in common: an etcd for each module that asks for one."""

from collections.abc import Iterator

import pytest

from support.etcd_server import EtcdServer


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdServer]:
    with EtcdServer() as server:
        yield server
