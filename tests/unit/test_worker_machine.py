"""The slot table relies on the order of stores, which not every machine promises."""

import logging

import pytest

from blockyard.worker.main import warn_of_store_order


def test_a_machine_without_that_promise_is_told_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        warn_of_store_order("aarch64")
    (record,) = caplog.records
    assert "out of order" in record.getMessage()


@pytest.mark.parametrize("machine", ["x86_64", "AMD64"])
def test_x86_64_is_not_worth_a_word(caplog: pytest.LogCaptureFixture, machine: str) -> None:
    with caplog.at_level(logging.WARNING):
        warn_of_store_order(machine)
    assert not caplog.records
