"""The breaker: first failure opens it, delays grow to a bound, only an answer starts them over."""

from blockyard.engine.breaker import Breaker


def test_it_admits_until_the_first_failure() -> None:
    breaker = Breaker(first=0.2, longest=5.0)
    assert breaker.admits(0.0)
    breaker.failed(10.0)
    assert not breaker.admits(10.1)
    assert breaker.admits(10.2)


def test_delays_double_up_to_the_longest() -> None:
    breaker = Breaker(first=0.2, longest=1.0)
    delays = []
    for _ in range(5):
        breaker.failed(0.0)
        delays.append(breaker.retry_at)
    assert delays == [0.2, 0.4, 0.8, 1.0, 1.0]


def test_only_an_answer_starts_the_delays_over() -> None:
    breaker = Breaker(first=0.2, longest=5.0)
    breaker.failed(0.0)
    breaker.failed(1.0)
    assert breaker.admits(2.0), "an attempt is allowed"
    breaker.failed(2.0)
    assert breaker.retry_at == 2.8, "an attempt alone has not closed it"
    breaker.answered()
    breaker.failed(3.0)
    assert breaker.retry_at == 3.2
