"""Counting how often etcd went back: once for each wipe or restore, however many watches notice it."""

from __future__ import annotations

from blockyard.common.etcd.history import HistoryCounter
from blockyard.common.etcd.values import KeyValue, Listing
from blockyard.common.etcd.watch import Resync, ResyncReason

LEADER = "/blockyard/main/leader"


def entry(created: int, modified: int | None = None) -> KeyValue:
    return KeyValue(LEADER, b"{}", created, modified or created, 1, 7)


def listed(revision: int, *entries: KeyValue, reason: ResyncReason = ResyncReason.START) -> Resync:
    return Resync(Listing(revision, entries), reason)


def test_nothing_went_back() -> None:
    seen = HistoryCounter()
    seen.resync(listed(4))
    seen.put(entry(5))
    seen.resync(listed(9, entry(5)))
    seen.put(entry(12))
    seen.resync(listed(12, entry(12), reason=ResyncReason.COMPACTED))
    assert seen.history == 0


def test_a_wipe_that_two_watches_notice_counts_once() -> None:
    seen = HistoryCounter()
    seen.resync(listed(40, entry(30)))
    seen.resync(listed(2, reason=ResyncReason.WENT_BACK))
    seen.resync(listed(6, entry(3)))
    assert seen.history == 1


def test_two_wipes_count_twice() -> None:
    seen = HistoryCounter()
    seen.resync(listed(40, entry(30)))
    seen.resync(listed(2, reason=ResyncReason.WENT_BACK))
    seen.resync(listed(6, entry(3)))
    seen.resync(listed(1, reason=ResyncReason.WENT_BACK))
    assert seen.history == 2


def test_a_new_watch_sees_an_older_revision() -> None:
    seen = HistoryCounter()
    seen.resync(listed(40, entry(30)))
    seen.resync(listed(7, entry(5)))
    assert seen.history == 1


def test_a_new_watch_sees_an_older_key_though_revisions_caught_up() -> None:
    seen = HistoryCounter()
    seen.put(entry(30, 33))
    seen.resync(listed(50, entry(4)))
    seen.resync(listed(51, entry(4)))
    assert seen.history == 1
