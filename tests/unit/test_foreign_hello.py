"""What is taken for a hello of another version, and what is not."""

import msgspec
import pytest

from blockyard.common.codec import PREFIX_BYTES, encode
from blockyard.common.foreign_hello import Spoken, foreign_hello
from blockyard.common.messages import attach, cluster
from support.attach_client import hello
from support.leader_world import hello as worker_hello


@pytest.mark.parametrize(
    "content",
    [
        ["hello", 1, 1, "1.0", "and so on"],
        ["hello", 0, 9, "1.0"],
        ["goodbye", 5, 6, "1.0"],
        ["hello", 6, 5, "1.0"],
        ["hello", -3, -2, "1.0"],
        ["hello", 5, "6", "1.0"],
        ["hello", 5, 6],
        {"hello": 5},
        "hello",
        [],
    ],
)
def test_not_a_hello_of_other_versions(content: object) -> None:
    assert foreign_hello(msgspec.msgpack.encode(content), "hello", 1, 1) is None


def test_one_of_other_versions_only() -> None:
    assert foreign_hello(msgspec.msgpack.encode(["hello", 2, 3, "2.0", {}]), "hello", 1, 1) == Spoken(2, 3, "2.0")
    assert foreign_hello(msgspec.msgpack.encode(["hello", 1, 1, "x" * 999]), "hello", 2, 2) == Spoken(1, 1, "x" * 256)


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x91" * 5000, b"\xd9\xff"])
def test_no_bytes_raise(payload: bytes) -> None:
    assert foreign_hello(payload, "hello", 1, 1) is None


def test_todays_messages_have_the_part_that_never_changes() -> None:
    """Whoever moves these fields makes old releases call new ones malformed."""
    for message, tag, most in (
        (hello(protocol_min=70, protocol_max=71, version="7"), "hello", attach.MAX_FRAME),
        (worker_hello(protocol_min=70, protocol_max=71, version="7"), "worker_hello", cluster.MAX_FRAME),
    ):
        assert foreign_hello(encode(message, most)[PREFIX_BYTES:], tag, 1, 9) == Spoken(70, 71, "7")
    assert attach.Refused.__struct_fields__ == cluster.LinkRefused.__struct_fields__ == ("code", "detail")
