"""An engine's numbers on their way through vLLM: joined, sent between processes, shown; and none of it may raise."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from prometheus_client import Counter, Gauge, Histogram
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata
from vllm.v1.metrics.stats import SchedulerStats
from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

from blockyard.common.messages.states import CopyState
from blockyard.engine.jobs import CopyResult
from blockyard.engine.vllm.bystander import stand_by
from blockyard.engine.vllm.metrics.prom import BlockyardPromMetrics, forget_former
from blockyard.engine.vllm.metrics.shown import Shown
from blockyard.engine.vllm.metrics.tally import Tally, ToldTwice
from blockyard.engine.vllm.specs import BlockyardWorkerMetadata, FailedLoad
from support.engine_series import PREFIX, Series, shown_in_process

HALF = CopyResult(1, "load", [CopyState.OK, CopyState.CORRUPT], copied=4096, seconds=0.5)


@pytest.fixture
def prom() -> Iterator[BlockyardPromMetrics]:
    yield registered()
    forget_former()


def registered() -> BlockyardPromMetrics:
    types = {Counter: Counter, Gauge: Gauge, Histogram: Histogram}
    return BlockyardPromMetrics(
        SimpleNamespace(kv_transfer_config=None), types, ["model_name", "engine"], {0: ["tiny", "0"]}
    )


def show(prom: BlockyardPromMetrics, data: Any) -> Series:
    prom.observe(data)
    return shown_in_process()


def sent(data: dict[str, Any]) -> Any:
    """As it arrives in the process of the API server."""
    frames = MsgpackEncoder().encode(SchedulerStats(kv_connector_stats=data))
    return MsgpackDecoder(SchedulerStats).decode(frames).kv_connector_stats


def test_ranks_and_scheduler_add_up_at_the_other_end(prom: BlockyardPromMetrics) -> None:
    ranks, scheduler = [Tally(), Tally()], Tally()
    for rank in ranks:
        rank.copied(HALF)
    ToldTwice(scheduler).add(f"{PREFIX}acquire_seconds", "", 0.002)
    scheduler.stands("", loads=2)
    first, second, third = (tally.take() for tally in (*ranks, scheduler))
    assert first and second and third
    series = show(prom, sent(first.aggregate(second).aggregate(third).to_dict()))
    assert series.get("copied_bytes_total", "host_to_gpu") == 8192
    assert series.get("copy_seconds_total", "host_to_gpu") == 1.0
    assert series.labels("loads_total") == {"ok": 2, "corrupt": 2}
    assert series.get("acquire_seconds_count") == 1
    assert series.labels("pending_copies") == {"host_to_gpu": 2}
    assert series.get("attached") == 1


def test_a_step_in_which_nothing_changed_has_nothing_to_tell() -> None:
    tally = Tally()
    tally.stands("no-worker")
    assert tally.take()
    tally.stands("no-worker")
    tally.add(f"{PREFIX}hit_tokens_total", "", 0)
    assert tally.take() is None
    tally.stands("")
    assert tally.take()


def test_only_one_reason_to_be_detached_stands(prom: BlockyardPromMetrics) -> None:
    assert "attached{" not in shown_in_process().text
    for reason in ("no-worker", "timeout", ""):
        tally = Tally()
        tally.stands(reason)
        stats = tally.take()
        assert stats
        assert show(prom, stats.data).labels("detached") == ({reason: 1} if reason else {})


def test_an_engine_made_anew_in_a_process_begins_at_0(prom: BlockyardPromMetrics) -> None:
    tally = Tally()
    tally.copied(HALF)
    stats = tally.take()
    assert stats and show(prom, stats.data).labels("loads_total")
    registered()
    assert shown_in_process().labels("loads_total") == {}


@pytest.mark.parametrize(
    "data",
    [
        {"blockyard_engine_of_tomorrow_total": {"": 1}},
        {f"{PREFIX}loads_total": {"mood": 1}},
        {"types": {}},
        {1: 2},
        None,
    ]
    + [{f"{PREFIX}loads_total": {"ok": wrong}} for wrong in (-1, "many")],
)
def test_what_makes_no_sense_is_left_out(prom: BlockyardPromMetrics, data: Any) -> None:
    assert show(prom, data).labels("loads_total") == {}


def test_numbers_that_fail_cost_the_numbers_alone() -> None:
    class Base:
        def get_kv_connector_stats(self) -> None:
            raise RuntimeError("broken")

    class Broken(Shown, Base):
        def _tally(self) -> Tally:
            return Tally()

    assert Broken().get_kv_connector_stats() is None
    assert Broken.build_prom_metrics(None, {}, [], {}) is None
    assert Broken.build_kv_connector_stats().is_empty()


def test_an_engine_that_stands_by_says_why() -> None:
    made = stand_by("version: too old")
    connector = made.__new__(made)
    connector.why = "version"
    connector._role = _scheduler()
    stats = connector.get_kv_connector_stats()
    assert stats and stats.data[f"{PREFIX}detached"] == {"version": 1}
    assert connector.get_kv_connector_stats() is None


def _scheduler() -> Any:
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

    return KVConnectorRole.SCHEDULER


def test_a_load_that_failed_at_the_second_rank_alone_is_not_forgotten() -> None:
    failed = {7: FailedLoad(frozenset({b"key"}), "corrupt")}
    first, second = BlockyardWorkerMetadata({7: 1}), BlockyardWorkerMetadata({7: 1}, failed_loads=failed)
    joined = first.aggregate(second)
    assert joined.failed_loads == failed
    assert not hasattr(OffloadingWorkerMetadata({7: 1}).aggregate(second), "failed_loads"), "what vLLM's own would do"


def test_what_is_shown_in_vllms_log_is_short() -> None:
    tally = Tally()
    tally.copied(HALF)
    tally.add(f"{PREFIX}acquire_seconds", "", 0.002)
    stats = tally.take()
    assert stats
    assert stats.reduce()["loads_total[corrupt]"] == 1
    assert stats.reduce()["acquire_seconds"] == 1
