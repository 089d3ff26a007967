"""How the lease machine comes to a key: this happened, so that is wanted next. Time is a number, etcd an answer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from blockyard.common.etcd.key_state import Held
from blockyard.common.etcd.lease_steps import (
    Create,
    Done,
    Event,
    Found,
    Get,
    Grant,
    Granted,
    Instruction,
    Made,
    Remove,
    Report,
    Rest,
    Revoke,
    Sleep,
    Watch,
    Woke,
)
from blockyard.common.etcd.watch import KeyDeleted, KeyPut
from support.lease_machines import AWAY, GONE, NO_PROGRESS, OTHERS, OURS, listed, machine, shown, standing_by, unheld

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
