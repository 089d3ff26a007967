"""What etcd holds, as frozen values: keys as text, values as bytes. Owns the translation from wire
messages and the rule by which a prefix becomes a range; never performs a request."""

from __future__ import annotations

from dataclasses import dataclass

from blockyard.common.etcd.wire import etcd_pb2 as pb


@dataclass(frozen=True, slots=True)
class KeyValue:
    """`create_revision` changes each time the key is made anew, `mod_revision` with each write."""

    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    version: int
    lease: int


@dataclass(frozen=True, slots=True)
class Listing:
    """The keys of a range as they stood at `revision`; a watch from `revision + 1` goes on without a gap."""

    revision: int
    kvs: tuple[KeyValue, ...]

    @property
    def first(self) -> KeyValue | None:
        return self.kvs[0] if self.kvs else None


def key_bytes(key: str) -> bytes:
    if not key:
        raise ValueError("etcd key is ''; right: at least one character")
    # Foreign keys under our prefix need not be UTF-8: they must survive being read and written back.
    return key.encode("utf-8", "surrogateescape")


def range_end(key: str, *, prefix: bool) -> bytes:
    """The exclusive end of the range: nothing for a single key, the next key after the prefix otherwise."""
    if not prefix:
        return b""
    stem = key_bytes(key).rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else b"\0"


def key_value(message: pb.KeyValue) -> KeyValue:
    return KeyValue(
        key=message.key.decode("utf-8", "surrogateescape"),
        value=message.value,
        create_revision=message.create_revision,
        mod_revision=message.mod_revision,
        version=message.version,
        lease=message.lease,
    )


def listing(message: pb.RangeResponse, revision: int) -> Listing:
    return Listing(revision, tuple(key_value(kv) for kv in message.kvs))
