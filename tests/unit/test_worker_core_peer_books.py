"""The books of a worker's peers, each by itself: who they are, who holds what, and what the leader was asked."""

from __future__ import annotations

from blockyard.common.messages.cluster import MAX_LOCATED, TIER_DISK, TIER_HOST, Peer, Span
from blockyard.common.messages.states import KeyState
from blockyard.worker.core.peers.holders import Holders
from blockyard.worker.core.peers.questions import LATE_SECONDS, Questions, holders_of
from blockyard.worker.core.peers.roster import Roster
from support.worker_core import keys

FRESH, TTL = 1.0, 30.0
A, B = keys(1, 2)


def roster(*peers: tuple[str, int]) -> Roster:
    one = Roster()
    one.known([Peer(node, incarnation, f"{node}:1") for node, incarnation in peers])
    return one


def test_a_peer_that_hung_is_left_alone_and_tried_again_later() -> None:
    one = roster(("n2", 7))
    one.by_node["n2"].breaker.failed(10.0, hung=True)
    assert (one.usable("n2", 10.5), one.left_alone) == (None, 1)
    assert one.usable("n2", 11.0) is one.by_node["n2"]


def test_a_peer_keeps_its_faults_until_it_starts_anew() -> None:
    one = roster(("n2", 7))
    one.by_node["n2"].breaker.failed(10.0, hung=True)
    one.known([Peer("n2", 7, "n2:1")])
    assert one.left_alone == 1
    one.known([Peer("n2", 8, "n2:1")])
    assert one.left_alone == 0


def test_who_is_not_named_any_more_is_no_peer() -> None:
    one = roster(("n2", 7))
    one.known([])
    assert one.usable("n2", 0.0) is None


def test_a_fresh_answer_spares_the_question_an_older_one_is_for_times_without_a_leader() -> None:
    book = Holders(8, FRESH, TTL)
    book.learn(A, ["n2"], 10.0)
    assert book.nodes(A, 11.0, may_ask=True) == ["n2"]
    assert book.nodes(A, 11.1, may_ask=True) is None
    assert book.nodes(A, 40.0, may_ask=False) == ["n2"]
    assert book.nodes(A, 40.1, may_ask=False) is None


def test_that_nobody_holds_a_key_is_believed_for_a_moment_only() -> None:
    book = Holders(8, FRESH, TTL)
    book.learn(A, [], 10.0)
    assert book.nodes(A, 10.5, may_ask=True) == []
    assert book.nodes(A, 11.5, may_ask=False) is None
    assert book.miss(A, 10.5) is None


def test_a_key_that_the_last_holder_did_not_give_says_so() -> None:
    book = Holders(8, FRESH, TTL)
    book.learn(A, ["n2", "n3"], 10.0)
    book.failed(A, "n2", 10.1)
    assert (book.nodes(A, 10.2, True), book.miss(A, 10.2)) == (["n3"], None)
    book.failed(A, "n3", 10.2)
    assert (book.nodes(A, 10.3, True), book.miss(A, 10.3)) == ([], KeyState.PEER_GONE)
    assert book.miss(A, 11.5) is None


def test_no_answer_takes_nothing_away_that_was_known() -> None:
    book = Holders(8, FRESH, TTL)
    book.learn(A, ["n2"], 10.0)
    book.unanswered(A, 12.0)
    book.unanswered(B, 12.0)
    assert book.nodes(A, 12.0, may_ask=False) == ["n2"]
    assert book.miss(B, 12.0) is KeyState.LEADER_UNKNOWN


def test_the_oldest_hint_goes_when_there_are_too_many() -> None:
    book = Holders(2, FRESH, TTL)
    for key in keys(1, 2, 3):
        book.learn(key, ["n2"], 10.0)
    assert len(book) == 2
    assert book.nodes(A, 10.0, True) is None


def test_an_answer_by_place_host_before_disk_and_nobody_twice() -> None:
    spans = [Span(0, 2, "n2", TIER_DISK), Span(1, 2, "n3", TIER_HOST), Span(1, 1, "n3", TIER_DISK)]
    assert holders_of(4, spans) == [["n2"], ["n3", "n2"], ["n3"], []]


def test_a_span_that_goes_too_far_is_cut() -> None:
    assert holders_of(1, [Span(0, 9, "n2", TIER_HOST), Span(5, 1, "n3", TIER_HOST)]) == [["n2"]]


def test_one_question_serves_all_who_want_the_same() -> None:
    book = Questions(4, 0.02)
    assert book.ask(5, keys(1, 2), True, 10.0).keys == keys(1, 2)
    same = book.same(keys(1, 2), True)
    assert same is not None and same.number == 5
    assert book.same(keys(1, 3), True) is None
    assert book.same(keys(1, 2), False) is None


def test_a_question_is_cut_at_its_limit() -> None:
    asked = Questions(4, 0.02).ask(5, keys(*range(2000)), True, 10.0)
    assert len(asked.keys) == MAX_LOCATED


def test_nobody_waits_for_a_late_answer_which_is_taken_in_all_the_same() -> None:
    book = Questions(4, 0.02)
    book.ask(5, keys(1), True, 10.0)
    assert book.next_deadline() == 10.02
    assert book.late(10.01) == []
    assert [one.number for one in book.late(10.02)] == [5]
    assert (book.late(10.03), book.next_deadline(), book.waited_for()) == ([], None, set())
    answered = book.answered(5)
    assert answered is not None and not answered.waited
    assert book.answered(5) is None


def test_what_is_never_answered_is_forgotten() -> None:
    book = Questions(1, 0.02)
    book.ask(5, keys(1), True, 10.0)
    book.late(10.02)
    assert book.full
    book.late(10.0 + LATE_SECONDS)
    assert not book.full


def test_with_the_link_all_questions_end() -> None:
    book = Questions(4, 0.02)
    book.ask(5, keys(1), True, 10.0)
    assert [one.number for one in book.end()] == [5]
    assert not book.all and book.same(keys(1), True) is None
