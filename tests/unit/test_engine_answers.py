"""Bookkeeping of questions and grants."""

import pytest

from blockyard.common.messages import attach
from blockyard.engine.answers import MAX_WAITING, Answers
from blockyard.engine.detached import Detached
from blockyard.engine.identity import bounded_name


def test_answers_come_in_any_order_and_are_taken_once() -> None:
    answers = Answers()
    first, second = answers.ask(1, 0.0), answers.ask(2, 1.0)
    answers.answered(attach.Grant(second, 7, b"\x00\x01"), 1, 1.5)
    taken = answers.take(second)
    assert taken is not None
    assert (taken.number, taken.states, taken.attachment) == (7, b"\x00\x01", 1)
    assert answers.take(second) is None
    assert answers.awaits(first)
    assert answers.longest_wait(3.0) == 3.0


@pytest.mark.parametrize("states", [b"", b"\x00\x00", b"\xff"])
def test_an_answer_that_does_not_fit_the_question_is_refused(states: bytes) -> None:
    answers = Answers()
    seq = answers.ask(1, 0.0)
    with pytest.raises(Detached):
        answers.answered(attach.Grant(seq, 0, states), 1, 0.0)


def test_an_answer_to_nothing_is_refused() -> None:
    with pytest.raises(Detached):
        Answers().answered(attach.Grant(5, 0, b""), 1, 0.0)


def test_an_abandoned_answer_is_given_back_whenever_it_comes() -> None:
    answers = Answers()
    late, early = answers.ask(1, 0.0), answers.ask(1, 0.0)
    assert answers.abandon(late) is None
    _, unwanted = answers.answered(attach.Grant(late, 3, b"\x00"), 1, 0.0)
    assert unwanted is not None and unwanted.number == 3
    answers.answered(attach.Grant(early, 4, b"\x00"), 1, 0.0)
    unwanted = answers.abandon(early)
    assert unwanted is not None and unwanted.number == 4


def test_questions_are_bounded_and_end_with_the_session() -> None:
    answers = Answers()
    seqs = [answers.ask(1, 0.0) for _ in range(MAX_WAITING)]
    assert answers.full
    answers.clear()
    assert not answers.full and not answers.waiting
    assert answers.ask(1, 0.0) > seqs[-1], "an old answer never meets a new question"


def test_long_names_stay_apart() -> None:
    one, two = bounded_name("r" * 400 + "1"), bounded_name("r" * 400 + "2")
    assert len(one) == len(two) == 256 and one != two
    assert bounded_name("short") == "short"
    assert bounded_name("")
