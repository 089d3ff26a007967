"""What the election key says of who leads: which events name a leader, and which entries can be believed."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from blockyard.common.config import Address
from blockyard.common.etcd.errors import EtcdRefused
from blockyard.common.etcd.values import KeyValue, Listing
from blockyard.common.etcd.watch import KeyDeleted, KeyPut, Resync, ResyncReason
from blockyard.common.fencing import Epoch, parse_uid
from blockyard.worker.election_key import ElectionKey, LeaderAddress

CLAIM = json.dumps({"node": "a", "link": "10.0.0.1:7400"}).encode()
ENTRY = KeyValue("/c/leader", CLAIM, create_revision=7, mod_revision=8, version=2, lease=1)
UID = KeyValue("/c/uid", b"ab" * 16, create_revision=2, mod_revision=2, version=1, lease=0)
LEADER = LeaderAddress(Epoch(b"\xab" * 16, 7), "a", Address("10.0.0.1", 7400))


def listed(revision: int, *entries: KeyValue) -> Resync:
    return Resync(Listing(revision, entries), ResyncReason.START)


def test_a_listing_and_a_change_name_the_leader() -> None:
    key = ElectionKey()
    assert key.heard(listed(9, ENTRY)) == ENTRY
    assert key.heard(KeyPut(replace(ENTRY, mod_revision=10))) == replace(ENTRY, mod_revision=10)
    assert key.leader(ENTRY, UID) == LEADER


def test_nobody_leads_for_now() -> None:
    key = ElectionKey()
    assert key.heard(listed(9)) is None
    assert key.heard(KeyDeleted("/c/leader", 10)) is None


def test_a_leader_of_older_data_is_of_another_history() -> None:
    key = ElectionKey()
    key.heard(listed(20, replace(ENTRY, create_revision=15, mod_revision=15)))
    key.heard(listed(9, ENTRY))
    assert key.leader(ENTRY, UID) == replace(LEADER, history=1)


def test_a_leader_without_a_uid_is_read_again_later() -> None:
    with pytest.raises(EtcdRefused, match="uid is missing in etcd, though /c/leader is there"):
        ElectionKey().leader(ENTRY, None)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (b"{", "Expecting"),
        (b"\xff", "can't decode"),
        (b"7", "no node or no link"),
        (b'{"node": "a"}', "no node or no link"),
        (b'{"node": 7, "link": "a:1"}', "node is 7"),
        (b'{"node": "a", "link": 7}', "link is 7"),
        (b'{"node": "a", "link": "a"}', "a"),
    ],
)
def test_an_entry_that_no_leader_would_write_is_refused(value: bytes, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        ElectionKey().leader(replace(ENTRY, value=value), UID)


@pytest.mark.parametrize("text", [b"", b"ab", b"ab" * 17, b"zz" * 16, b"\xff" * 32])
def test_a_uid_that_is_none_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match="right: 32 hex digits"):
        parse_uid(text)
