"""How the lease machine keeps a key, changes what it says, and gives it up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from blockyard.common.etcd.key_state import Held
from blockyard.common.etcd.lease_machine import LeaseMachine
from blockyard.common.etcd.lease_steps import (
    Done,
    Event,
    Found,
    Get,
    Granted,
    KeepAlive,
    Put,
    Rest,
    Revoke,
    Stopped,
    Woke,
    Wrote,
)
from blockyard.common.etcd.values import KeyValue
from support.lease_machines import AWAY, GONE, NO_PROGRESS, OURS, machine, renewing, resting, standing_by, unheld

# Renewing.


def test_a_renewal_asks_for_the_lease_and_then_looks_at_the_key() -> None:
    one = resting()
    assert one.handle(1.0, True, Woke()) == [KeepAlive(70, 1.0)]
    assert one.handle(1.2, True, Granted(70, 3)) == [Get(1.0)]
    assert one.handle(1.4, True, Found(OURS)) == [Rest(1.0)]
    assert (one.held(3.4), one.held(3.5)) == (True, False)


def test_a_lease_renewed_without_a_look_at_the_key_does_not_count() -> None:
    one = resting()
    for now, event in ((1.0, Woke()), (1.1, Granted(70, 3)), (2.1, AWAY)):
        one.handle(now, True, event)
    assert not one.held(2.5)


def test_who_makes_no_progress_does_not_renew() -> None:
    one = resting()
    assert one.handle(1.0, False, Woke()) == [Rest(1.0)]
    assert one.handle(2.5, False, Woke()) == [unheld(f"the lease margin is spent: {NO_PROGRESS}"), Rest(1.0)]
    assert one.handle(3.5, True, Woke()) == [KeepAlive(70, 1.0)]


@pytest.mark.parametrize("before", [(), (Granted(70, 3),)])
def test_a_renewal_that_fails_is_tried_again_sooner(before: tuple[Event, ...]) -> None:
    one = renewing(*before)
    assert one.handle(1.0, True, AWAY) == [Rest(0.05)]
    assert one.handle(1.05, True, Woke()) == [KeepAlive(70, 1.0)]
    assert one.handle(2.5, True, AWAY) == [unheld("the lease margin is spent: away"), Rest(0.1)]


def test_a_renewal_after_trouble_makes_the_same_tenure_good_again() -> None:
    one = renewing(AWAY, Woke(), AWAY, Woke(), Granted(70, 3))
    assert one.handle(0.5, True, Found(OURS)) == [Rest(1.0)]
    one.handle(1.5, True, Woke())
    assert one.handle(1.5, True, AWAY) == [Rest(0.05)]


def test_a_lease_that_is_gone_ends_the_tenure() -> None:
    one = renewing()
    assert one.handle(1.0, True, GONE) == [unheld("gone"), Revoke(70, 1.0)]
    assert not one.held(1.0) and not one.is_ours(OURS)
    assert one.handle(1.0, True, Done()) == [Get()]


def test_a_key_deleted_under_a_living_lease_ends_the_tenure() -> None:
    lost = renewing(Granted(70, 3)).handle(1.0, True, Found(None))
    assert lost == [unheld("etcd key k: deleted by someone else"), Revoke(70, 1.0)]


@pytest.mark.parametrize("entry", [replace(OURS, create_revision=8), replace(OURS, lease=71)])
def test_a_key_that_is_not_the_one_we_made_ends_the_tenure(entry: KeyValue) -> None:
    """Young data counts alike: after a wipe another may have made the key at the very same revision."""
    lost = renewing(Granted(70, 3)).handle(1.0, True, Found(entry))
    assert lost == [unheld(f"etcd key k: taken over by {entry}"), Revoke(70, 1.0)]


def test_a_tenure_is_confirmed_by_its_own_entry_within_its_time() -> None:
    one = resting()
    assert one.confirms(Held(7), OURS, 2.4)
    assert not one.confirms(Held(7), OURS, 2.5)
    assert not one.confirms(Held(7), None, 0.0)
    assert not one.confirms(Held(7), replace(OURS, lease=71), 0.0)
    assert not one.confirms(Held(6), OURS, 0.0)


# A new value.


def test_a_new_value_is_written_with_the_renewal() -> None:
    one = renewing(Granted(70, 3))
    one.value = b"new"
    assert one.handle(0.0, True, Found(OURS)) == [Put(7, b"new", 70, 1.0)]
    assert one.handle(0.0, True, Wrote(True)) == [Rest(1.0)]
    assert next_write(one) is None


def test_a_value_that_changes_while_it_is_written_is_written_again() -> None:
    one = renewing(Granted(70, 3))
    one.value = b"new"
    one.handle(0.0, True, Found(OURS))
    one.value = b"newer"
    one.handle(0.0, True, Wrote(True))
    assert next_write(one) == b"newer"


def test_a_value_whose_writing_failed_is_written_again() -> None:
    one = renewing(Granted(70, 3))
    one.value = b"new"
    one.handle(0.0, True, Found(OURS))
    assert one.handle(1.0, True, AWAY) == [Rest(0.05)]
    assert next_write(one) == b"new"


def test_a_key_taken_over_before_the_value_was_written_ends_the_tenure() -> None:
    one = renewing(Granted(70, 3))
    one.value = b"new"
    one.handle(0.0, True, Found(OURS))
    lost = one.handle(0.0, True, Wrote(False))
    assert lost == [unheld("etcd key k: taken over before its new value was written"), Revoke(70, 1.0)]


def next_write(one: LeaseMachine) -> bytes | None:
    """What the next renewal of a resting machine writes."""
    for event in (Woke(), Granted(70, 3)):
        one.handle(0.0, True, event)
    wanted = one.handle(0.0, True, Found(OURS))[0]
    return wanted.value if isinstance(wanted, Put) else None


# The end.


def test_who_is_stopped_gives_the_key_up() -> None:
    one = resting()
    assert one.handle(0.5, True, Stopped()) == [unheld("stopped"), Revoke(70, 1.0)]
    assert not one.held(0.5)


@pytest.mark.parametrize("one", [machine(), standing_by(), machine(Woke(), Found(None))])
def test_who_is_stopped_without_the_key_asks_for_nothing(one: LeaseMachine) -> None:
    assert one.handle(0.5, True, Stopped()) == [unheld("stopped")]


def test_an_answer_that_nobody_asked_for_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="etcd key k: waits for the time to try, not for Done"):
        machine().handle(0.0, True, Done())
    with pytest.raises(RuntimeError, match="etcd key k: waits for the time to renew, not for Failed"):
        resting().handle(0.0, True, AWAY)
