"""Lease machines for tests, brought to where a test begins, and the answers of etcd that bring them there."""

from __future__ import annotations

from blockyard.common.etcd.errors import EtcdUnavailable, LeaseGone
from blockyard.common.etcd.key_state import NotHeld, Waiting
from blockyard.common.etcd.lease_machine import LeaseMachine
from blockyard.common.etcd.lease_steps import Event, Failed, Found, Granted, Made, Report, Woke
from blockyard.common.etcd.tenure import LeaseTerms
from blockyard.common.etcd.values import KeyValue, Listing
from blockyard.common.etcd.watch import Resync, ResyncReason

TERMS = LeaseTerms(ttl_s=3, margin_s=0.5)
OURS = KeyValue("k", b"v", create_revision=7, mod_revision=7, version=1, lease=70)
OTHERS = KeyValue("k", b"o", create_revision=5, mod_revision=6, version=2, lease=50)
AWAY = Failed(EtcdUnavailable("away"))
GONE = Failed(LeaseGone("gone"))
NO_PROGRESS = "this process makes no progress"


def machine(*events: Event, take_over: bool = False) -> LeaseMachine:
    """One that has seen these events, all at time 0."""
    made = LeaseMachine("k", b"v", TERMS, take_over=take_over)
    for event in events:
        made.handle(0.0, True, event)
    return made


def resting() -> LeaseMachine:
    """It holds the key, by a lease that was asked for at time 0, and waits to renew it."""
    return machine(Woke(), Found(None), Granted(70, 3), Made(True, OURS))


def renewing(*events: Event) -> LeaseMachine:
    """It holds the key and has begun to renew at time 0, with these answers so far."""
    made = resting()
    for event in (Woke(), *events):
        made.handle(0.0, True, event)
    return made


def standing_by() -> LeaseMachine:
    """It follows another's key by a watch that it began at time 0 and that has listed the key then."""
    return machine(Woke(), Found(OTHERS), listed(OTHERS))


def listed(*entries: KeyValue) -> Resync:
    return Resync(Listing(9, entries), ResyncReason.START)


def shown(entry: KeyValue) -> Report:
    return Report(Waiting(entry))


def unheld(reason: str) -> Report:
    return Report(NotHeld(reason))
