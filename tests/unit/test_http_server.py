"""Which peers are of this machine."""

from __future__ import annotations

import pytest

from blockyard.common.http_server import is_loopback


@pytest.mark.parametrize(
    ("address", "local"),
    [
        ("127.0.0.1", True),
        ("127.8.0.9", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("172.17.0.2", False),
        ("::ffff:172.17.0.2", False),
        ("fe80::1%eth0", False),
        ("0.0.0.0", False),
        ("", False),
        (None, False),
        ("a name", False),
    ],
)
def test_loopback(address: str | None, local: bool) -> None:
    assert is_loopback(address) is local
