"""Every token asked for ends up as loaded or computed, once; time saved is what computing would have taken."""

from collections import Counter

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from blockyard.engine.vllm.accounting import Accounting, PrefillRate
from blockyard.engine.vllm.lookups import Load

ENGINE = "blockyard_engine_"


class Books:
    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.accounting = Accounting(self._count)

    def _count(self, name: str, label: str, amount: float) -> None:
        self.counts[name.removeprefix(ENGINE).removesuffix("_total")] += amount
        if label:
            self.reasons[label] += amount


def test_a_request_without_a_load_is_computed_whole() -> None:
    books = Books()
    books.accounting.computed_all(700)
    assert books.counts == {"requested_tokens": 700, "hit_tokens": 0, "loaded_tokens": 0, "computed_tokens": 700}


def test_a_load_saves_the_time_that_computing_takes_less_its_own() -> None:
    books = Books()
    books.accounting.rate.step_begins(10.0, 1000)
    books.accounting.rate.step_ends(12.0)
    books.accounting.load_ended(asked=1000, hit=768, loaded=768, seconds=0.5)
    assert books.counts["loaded_tokens"] == 768
    assert books.counts["computed_tokens"] == 232
    assert books.counts["ttft_saved_seconds"] == pytest.approx(768 * 0.002 - 0.5)


def test_a_load_slower_than_computing_saves_nothing() -> None:
    books = Books()
    books.accounting.rate.step_begins(0.0, 1000)
    books.accounting.rate.step_ends(0.1)
    books.accounting.load_ended(asked=256, hit=256, loaded=256, seconds=9.0)
    assert "ttft_saved_seconds" not in books.counts


def test_hits_that_did_not_load_count_as_recomputed_by_reason() -> None:
    books = Books()
    books.accounting.load_ended(asked=1000, hit=768, loaded=512, seconds=0.5, failure="corrupt")
    books.accounting.computed_all(1000, hit_in_vain=1024, failure="detached")
    assert books.counts["recomputed_tokens"] == 256 + 1000
    assert books.counts["hit_tokens"] == books.counts["loaded_tokens"] + books.counts["recomputed_tokens"]
    assert books.reasons == {"corrupt": 256, "detached": 1000}


def test_what_failed_to_load_counts_as_computed() -> None:
    load = Load(asked=1200, hit=1024, first=256, began=0.0)
    load.arrived_before(768)
    assert load.arrived == 512
    load.arrived_before(1024)
    assert load.arrived == 512, "the first gap decides"
    load.arrived_before(0)
    assert load.arrived == 0


def test_decode_steps_do_not_count_as_prefill_rate() -> None:
    rate = PrefillRate()
    rate.step_begins(0.0, 4)
    rate.step_ends(5.0)
    assert rate.seconds_per_token == 0.0


def test_overlapping_steps_are_matched_in_order() -> None:
    rate = PrefillRate()
    rate.step_begins(0.0, 100)
    rate.step_begins(1.0, 2)
    rate.step_ends(2.0)
    rate.step_ends(2.1)
    assert rate.seconds_per_token == pytest.approx(0.02)
