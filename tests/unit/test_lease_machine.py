"""The lease machine by itself: this happened, so that is wanted next. Time is a number here, and etcd an answer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from blockyard.common.etcd.errors import EtcdUnavailable, LeaseGone
from blockyard.common.etcd.key_state import Held, NotHeld, Waiting
from blockyard.common.etcd.lease_machine import LeaseMachine
from blockyard.common.etcd.lease_steps import (
    Create,
    Done,
    Event,
    Failed,
    Found,
    Get,
    Grant,
    Granted,
    Instruction,
    KeepAlive,
    Made,
    Put,
    Remove,
    Report,
    Rest,
    Revoke,
    Sleep,
    Stopped,
    Watch,
    Woke,
    Wrote,
)
from blockyard.common.etcd.tenure import LeaseTerms
from blockyard.common.etcd.values import KeyValue, Listing
from blockyard.common.etcd.watch import KeyDeleted, KeyPut, Resync, ResyncReason

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


# Registering.


def test_a_free_key_is_made_under_a_new_lease() -> None:
    one = machine()
    assert one.handle(0.0, True, Woke()) == [Get()]
    assert one.handle(0.1, True, Found(None)) == [Grant(3)]
    assert one.handle(0.2, True, Granted(70, 3)) == [Create(b"v", 70)]
    assert one.handle(0.3, True, Made(True, OURS)) == [Report(Held(7)), Rest(1.0)]


def test_the_tenure_counts_from_when_its_lease_was_asked_for() -> None:
    one = machine(Woke())
    for now, event in ((1.0, Found(None)), (1.5, Granted(70, 3)), (2.0, Made(True, OURS))):
        one.handle(now, True, event)
    assert (one.held(3.4), one.held(3.5)) == (True, False)


def test_a_lease_that_was_granted_for_longer_counts_so() -> None:
    one = machine(Woke(), Found(None), Granted(70, 6), Made(True, OURS))
    assert one.held(5.4) and not one.held(5.5)


def test_a_registration_that_outlasts_its_lease_is_no_tenure_to_rely_on() -> None:
    one = machine(Woke(), Found(None), Granted(70, 3))
    late = one.handle(2.5, True, Made(True, OURS))
    assert late == [unheld("the lease margin is spent: registration took longer than the lease"), Rest(1.0)]


def test_who_makes_no_progress_does_not_ask_for_the_key() -> None:
    one = machine()
    assert one.handle(0.0, False, Woke()) == [unheld(NO_PROGRESS), Sleep(1.0)]
    assert one.handle(1.0, False, Woke()) == [Sleep(1.0)]
    assert one.handle(2.0, True, Woke()) == [Get()]


def test_a_value_set_meanwhile_is_the_one_that_is_made() -> None:
    one = machine(Woke(), Found(None))
    one.value = b"new"
    assert one.handle(0.0, True, Granted(70, 3)) == [Create(b"new", 70)]


@pytest.mark.parametrize("before", [(), (Found(None),), (Found(None), Granted(70, 3)), (Found(OTHERS),)])
def test_a_failure_on_the_way_is_told_and_tried_again(before: tuple[Event, ...]) -> None:
    one = machine(Woke(), *before)
    assert one.handle(0.0, True, AWAY) == [unheld("away"), Sleep(0.05)]
    assert one.handle(0.05, True, Woke()) == [Get()]
    assert one.handle(5.0, True, AWAY) == [Sleep(0.1)]


def test_waits_grow_up_to_a_bound_and_shrink_once_the_key_is_held() -> None:
    one = machine()
    slept = []
    for _ in range(7):
        one.handle(0.0, True, Woke())
        slept += one.handle(0.0, True, AWAY)[-1:]
    assert slept == [Sleep(s) for s in (0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0)]
    for event in (Woke(), Found(None), Granted(70, 3), Made(True, OURS), Woke(), GONE, Done()):
        one.handle(0.0, True, event)
    assert one.handle(0.0, True, AWAY) == [unheld("away"), Sleep(0.05)]


# Another has it.


def test_a_key_that_another_holds_is_watched() -> None:
    assert machine(Woke()).handle(0.0, True, Found(OTHERS)) == [shown(OTHERS), Watch(3.0, afresh=True)]


def test_who_comes_second_gives_its_lease_back_and_looks_again() -> None:
    one = machine(Woke(), Found(None), Granted(70, 3))
    assert one.handle(0.0, True, Made(False, OTHERS)) == [shown(OTHERS), Revoke(70, 1.0)]
    assert one.handle(0.0, True, Done()) == [Get()]
    assert one.handle(0.0, True, Found(OTHERS)) == [Watch(3.0, afresh=True)]


def test_a_lease_that_cannot_be_given_back_is_left_to_expire() -> None:
    one = machine(Woke(), Found(None), Granted(70, 3), Made(False, OTHERS))
    assert one.handle(1.0, True, AWAY) == [Get()]


@pytest.mark.parametrize("news", [listed(), KeyDeleted("k", 9)])
def test_a_standby_campaigns_once_the_key_is_gone(news: Event) -> None:
    one = standing_by()
    assert one.handle(1.0, True, news) == [Get()]
    assert one.handle(1.0, True, Found(None)) == [Grant(3)]


def test_a_standby_without_progress_leaves_the_key_to_others() -> None:
    assert standing_by().handle(1.0, False, KeyDeleted("k", 9)) == [unheld(NO_PROGRESS), Sleep(1.0)]


def test_a_standby_tells_each_new_holder() -> None:
    one = standing_by()
    changed = replace(OTHERS, value=b"p", mod_revision=8)
    assert one.handle(1.0, True, KeyPut(changed)) == [shown(changed), Watch(2.0)]
    assert one.handle(1.0, True, KeyPut(changed)) == [Watch(2.0)]


def test_a_standby_whose_watch_says_nothing_begins_another_after_a_ttl() -> None:
    """A watch does not see a wipe if the new data's revisions caught up with it unseen."""
    one = standing_by()
    assert one.handle(2.5, True, Woke()) == [Watch(0.5)]
    assert one.handle(3.0, True, Woke()) == [Watch(3.0, afresh=True)]
    assert one.handle(3.1, True, listed()) == [Get()]


def test_a_standby_whose_watch_is_never_silent_begins_another_after_a_ttl_too() -> None:
    one = standing_by()
    assert one.handle(3.0, True, KeyPut(OTHERS)) == [Watch(3.0, afresh=True)]


def test_a_new_watch_is_begun_once_a_ttl_at_most() -> None:
    one = standing_by()
    one.handle(3.0, True, Woke())
    assert one.handle(3.5, True, listed(OTHERS)) == [Watch(3.0)]
    assert one.handle(6.0, True, Woke()) == [Watch(0.5)]


def test_a_watch_that_has_not_listed_yet_is_given_its_time() -> None:
    """It goes from one endpoint to the next by itself, which may take longer than a ttl."""
    one = machine(Woke(), Found(OTHERS))
    assert one.handle(3.0, True, Woke()) == [Watch(3.0)]
    assert one.handle(9.0, True, Woke()) == [Watch(3.0)]


@pytest.mark.parametrize("step", [0.1, 0.7, 1.3])
def test_the_time_left_to_a_watch_comes_to_an_end(step: float) -> None:
    """Also where the times that were waited add up to a little less than a ttl."""
    for number in range(1, 100):
        one, now = standing_by(), number * step
        one.handle(now, True, Woke())
        wanted = one.handle(now, True, listed(OTHERS))
        for part in (0.3, 1.0, 1.0, 1.0):
            if wanted != [Watch(3.0, afresh=True)]:
                now += part * seconds(wanted)
                wanted = one.handle(now, True, Woke())
        assert wanted == [Watch(3.0, afresh=True)]


def seconds(wanted: list[Instruction]) -> float:
    assert isinstance(wanted[-1], Watch)
    return wanted[-1].seconds


def test_a_watch_that_fails_is_told_and_tried_again() -> None:
    assert standing_by().handle(1.0, True, AWAY) == [unheld("away"), Sleep(0.05)]


# Taking over.


def test_a_predecessors_key_is_removed_and_made_anew() -> None:
    one = machine(Woke(), take_over=True)
    assert one.handle(0.0, True, Found(OTHERS)) == [Remove(6)]
    assert one.handle(0.0, True, Done()) == [Grant(3)]


def test_who_was_outrun_removes_nothing() -> None:
    one = machine(Woke(), Found(OTHERS), Done(), Granted(70, 3), Made(False, OTHERS), Done(), take_over=True)
    assert one.handle(0.0, True, Found(OTHERS)) == [Watch(3.0, afresh=True)]


def test_who_was_displaced_removes_nothing() -> None:
    one = machine(Woke(), Found(OTHERS), Done(), Granted(70, 3), Made(True, OURS), Woke(), take_over=True)
    one.handle(0.0, True, GONE)
    assert one.handle(0.0, True, Done()) == [Get()]
    assert one.handle(0.0, True, Found(OTHERS)) == [shown(OTHERS), Watch(3.0, afresh=True)]


def test_a_removal_whose_answer_was_lost_is_tried_again() -> None:
    one = machine(Woke(), Found(OTHERS), AWAY, Woke(), take_over=True)
    assert one.handle(0.0, True, Found(OTHERS)) == [Remove(6)]


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
