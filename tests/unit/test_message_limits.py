"""No message can be refused for its size: each one, as large as its declaration allows, fits in a frame."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest
from msgspec import inspect

from blockyard.common.codec import PREFIX_BYTES, Decoder, encode
from blockyard.common.identity import DIGEST_BYTES
from blockyard.common.messages import attach, cluster, peer
from blockyard.worker.core import frames
from blockyard.worker.core.settings import CoreSettings
from blockyard.worker.handshake import MAX_HELLO
from support.worker_core import Engine, Node, answer

MAX_RUNS = 64
WIDE = "\U0010ffff"
"""A character that takes as many bytes as one can."""


def largest(kind: inspect.Type, name: str) -> Any:
    """A value of this type that takes as many bytes as any can."""
    match kind:
        case inspect.BoolType():
            return True
        case inspect.FloatType():
            return 1.5
        case inspect.IntType(le=int(most)):
            return most
        case inspect.StrType(max_length=int(most)):
            return WIDE * most
        case inspect.BytesType(max_length=int(most)):
            return b"\xff" * most
        case inspect.LiteralType(values=values):
            return max(values, key=len)
        case inspect.TupleType(item_types=items):
            return tuple(largest(item, name) for item in items)
        case inspect.ListType(item_type=item, max_length=int(most)):
            return [largest(item, name)] * most
        case inspect.StructType(cls=cls, fields=fields):
            return cls(*[largest(field.type, f"{name}.{field.name}") for field in fields])
    raise AssertionError(f"{name} has no upper bound: {kind}")


def message(cls: type[msgspec.Struct]) -> msgspec.Struct:
    """The largest message of a kind. Of Acquire and Fill the limit of keys is one over all runs."""
    if cls in (attach.Acquire, attach.Fill):
        keys = b"\xff" * (DIGEST_BYTES * attach.MAX_KEYS // MAX_RUNS)
        run = attach.Run(65535, 2**53, b"\xff" * DIGEST_BYTES, keys)
        return cls(2**53, WIDE * 256, [run] * MAX_RUNS)
    made = largest(inspect.type_info(cls), cls.__name__)
    assert isinstance(made, msgspec.Struct)
    return made


@pytest.mark.parametrize("cls", get_args(attach.FromEngine) + get_args(attach.ToEngine))
def test_a_message_of_the_attach_channel_fits(cls: type[msgspec.Struct]) -> None:
    kinds = attach.FromEngine if cls in get_args(attach.FromEngine) else attach.ToEngine
    whole = message(cls)
    frame = encode(whole, attach.MAX_FRAME)
    assert Decoder[Any](kinds).decode(frame[PREFIX_BYTES:]) == whole
    if cls in get_args(attach.FromEngine):
        assert frames.fault(whole) == ""  # type: ignore[arg-type]


@pytest.mark.parametrize("cls", get_args(cluster.FromWorker) + get_args(cluster.ToWorker))
def test_a_message_of_the_cluster_channel_fits(cls: type[msgspec.Struct]) -> None:
    kinds = cluster.FromWorker if cls in get_args(cluster.FromWorker) else cluster.ToWorker
    whole = message(cls)
    frame = encode(whole, cluster.MAX_FRAME)
    assert Decoder[Any](kinds).decode(frame[PREFIX_BYTES:]) == whole


@pytest.mark.parametrize("cls", get_args(peer.FromReader) + get_args(peer.ToReader))
def test_a_message_of_the_peer_channel_fits(cls: type[msgspec.Struct]) -> None:
    kinds = peer.FromReader if cls in get_args(peer.FromReader) else peer.ToReader
    whole = message(cls)
    frame = encode(whole, peer.MAX_FRAME)
    assert Decoder[Any](kinds).decode(frame[PREFIX_BYTES:]) == whole


def test_the_largest_hello_fits_in_a_first_frame() -> None:
    assert len(encode(message(attach.Hello), MAX_HELLO)) <= MAX_HELLO


def test_one_key_more_than_a_message_may_have_is_a_fault() -> None:
    run = attach.Run(0, 0, b"", bytes(DIGEST_BYTES * attach.MAX_KEYS))
    one = attach.Run(0, 0, b"", bytes(DIGEST_BYTES))
    assert "limit" in frames.fault(attach.Fill(1, "r", [run, one]))


def test_a_worker_has_no_more_than_its_messages_can_say() -> None:
    settings = CoreSettings(node="n", boot_id=bytes(16), version="1", pool_bytes=4096, slab_bytes=4096, min_slot=4096)
    assert settings.max_worlds <= cluster.MAX_WORLDS
    assert settings.max_sessions <= cluster.MAX_ENGINES


def test_a_refusal_with_a_long_reason_can_be_read() -> None:
    node = Node()
    groups = [attach.GroupShape(group, 1 << 20, 4096) for group in range(64)]
    node.engine(groups=groups)
    other = [attach.GroupShape(group, 1, 4096) for group in range(64)]
    out = Engine(node, "b", 1, groups=other).attach_rank(0)
    refused = answer(out, attach.Refused)
    assert refused.code == "shape"
    frame = encode(refused, attach.MAX_FRAME)
    assert Decoder[Any](attach.ToEngine).decode(frame[PREFIX_BYTES:]) == refused
