"""Which requests and blocks are of the present epoch of the weights, and when a new one begins. No engine runs."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from vllm.v1.kv_offload.base import make_offload_key
from vllm.v1.worker.cpu_worker import CPUWorker
from vllm.v1.worker.gpu_worker import Worker
from vllm.v1.worker.worker_base import WorkerWrapperBase

from blockyard.engine.vllm.adapters import AdapterBook
from blockyard.engine.vllm.epochs import Change, Epochs
from blockyard.engine.vllm.groups import CacheGroup
from blockyard.engine.vllm.lookups import RequestState
from blockyard.engine.vllm.membership import Membership
from blockyard.engine.vllm.specs import BlockyardWorkerMetadata
from blockyard.engine.vllm.weights_watch import FREES_MEMORY, HARMLESS, WeightsWatch

WORLD = b"w" * 32
GROUP = CacheGroup(0, 16, 4)
CHANGING = {
    "apply_model",
    "checkpoint_prepare",
    "checkpoint_restore",
    "discard",
    "elastic_ep_execute",
    "finish_weight_update",
    "get_draft_model",
    "get_model",
    "handle_ft_command",
    "load_model",
    "reload_weights",
    "reset_weights",
    "sleep",
    "start_draft_weight_update",
    "start_weight_update",
    "update_weights",
}
NO_CALLS = {"check_preloaded_libs", "randomize_dummy_inputs", "skip_set_num_threads", "sleep_mode_backend"}


def epochs_of(ranks: int = 1) -> Epochs:
    numbers = count()
    return Epochs(WORLD, ranks, lambda: next(numbers).to_bytes(32, "big"))


class Scheduling:
    """Steps and requests of an engine, as its connector tells of them."""

    def __init__(self) -> None:
        self.epochs = epochs_of()
        self.book = Membership(self.epochs, (GROUP,), AdapterBook("engine"))

    def request(self, blocks: list[int], hit_blocks: int = 0) -> RequestState:
        """One that begins in this step."""
        state = RequestState()
        self.book.begin(state)
        self.book.give_blocks(state, [blocks], hit_blocks * 16)
        return state

    def change(self, number: int, since: int) -> None:
        assert self.epochs.hear({0: Change(number, since)})


def test_an_epoch_has_a_world_that_none_has_had_before() -> None:
    epochs = epochs_of()
    worlds = [epochs.world]
    for number in (1, 2):
        epochs.reset()
        worlds.append(epochs.world)
        assert epochs.hear({0: Change(number, epochs.step)})
        worlds.append(epochs.world)
    assert worlds[0] == WORLD
    assert len(set(worlds)) == 5


def test_two_engines_have_no_epoch_in_common() -> None:
    one, other = Epochs(WORLD, 1, lambda: b"1" * 32), Epochs(WORLD, 1, lambda: b"2" * 32)
    one.reset()
    other.reset()
    assert one.world != other.world


def test_each_rank_is_heard_once() -> None:
    epochs = epochs_of(ranks=2)
    assert epochs.hear({0: Change(1, 4), 1: Change(1, 4)})
    assert epochs.number == 1
    assert not epochs.hear({0: Change(1, 4)})
    assert epochs.hear({1: Change(2, 7)})
    assert epochs.heard == (1, 2)


def test_of_two_ranks_the_later_one_says_from_when_on() -> None:
    epochs = epochs_of(ranks=2)
    assert epochs.hear({0: Change(1, 4), 1: Change(1, 6)})
    assert not epochs.includes(5)
    assert epochs.includes(6)


def test_a_rank_that_changes_alone_does_not_bring_old_steps_back() -> None:
    epochs = epochs_of(ranks=2)
    epochs.hear({0: Change(1, 9)})
    epochs.hear({1: Change(1, 5)})
    assert not epochs.includes(8)


def test_a_request_that_began_before_the_change_stores_nothing_and_a_later_one_does() -> None:
    engine = Scheduling()
    old = engine.request([1, 2])
    engine.epochs.step_ends()
    new = engine.request([3, 4])
    assert engine.book.includes(old)
    engine.change(1, since=2)
    for state in (old, new):
        engine.book.renew(state)
    assert not engine.book.includes(old)
    assert engine.book.includes(new)
    assert new.world == engine.epochs.world != WORLD


def test_who_begins_with_an_old_block_is_old_and_so_are_the_blocks_that_follow() -> None:
    engine = Scheduling()
    engine.request([1, 2])
    engine.epochs.step_ends()
    engine.change(1, since=2)
    heir = engine.request([1, 2, 3], hit_blocks=2)
    assert not engine.book.includes(heir)
    engine.book.give_more_blocks(heir, [[4]])
    assert not engine.book.includes(engine.request([3, 5], hit_blocks=1))
    assert not engine.book.includes(engine.request([4, 5], hit_blocks=1))


def test_an_old_block_that_is_computed_anew_is_new() -> None:
    engine = Scheduling()
    engine.request([1, 2])
    engine.epochs.step_ends()
    engine.change(1, since=2)
    assert engine.book.includes(engine.request([1, 2]))
    assert engine.book.includes(engine.request([1, 2, 3], hit_blocks=2))


def test_a_preempted_request_that_begins_with_nothing_old_is_new() -> None:
    engine = Scheduling()
    state = engine.request([1, 2])
    engine.epochs.step_ends()
    engine.epochs.reset()
    assert not engine.book.includes(state)
    engine.book.begin(state)
    engine.book.give_blocks(state, [[1, 2]], 0)
    assert engine.book.includes(state)


def test_what_was_being_loaded_over_a_reset_is_old() -> None:
    """vLLM tells of its blocks once more when the load has ended."""
    engine = Scheduling()
    state = engine.request([1, 2])
    engine.epochs.step_ends()
    engine.epochs.reset()
    engine.book.give_blocks(state, [[1, 2, 3]], 0)
    assert not engine.book.includes(state)
    assert not engine.book.includes(engine.request([1, 4], hit_blocks=1))


def test_a_request_gets_other_names_for_its_chunks() -> None:
    engine = Scheduling()
    state = engine.request([1])
    state.forbidden.add(make_offload_key(b"h" * 32, 0))
    chain: Any = type("Chain", (), {"group": GROUP})
    old = state.key_of(chain, make_offload_key(b"h" * 32, 0))
    engine.change(1, since=1)
    engine.book.renew(state)
    assert state.key_of(chain, make_offload_key(b"h" * 32, 0)) != old
    assert not state.forbidden


class Rank:
    """What of a vLLM worker is looked at."""

    def reload_weights(self) -> None:
        return

    def check_health(self) -> None:
        return

    def sleep(self) -> None:
        return

    def memory_of(self) -> None:
        return


def wrapper() -> Any:
    made = WorkerWrapperBase()
    made.worker = Rank()  # type: ignore[assignment]
    return made


def test_a_rank_counts_calls_that_may_change_its_weights() -> None:
    watch, rank = WeightsWatch(0, lambda: None, frozenset({"memory_of"})), wrapper()
    rank.check_health()
    rank.memory_of()
    assert watch.changes == 0
    rank.reload_weights()
    assert watch.changes == 1


def test_copies_end_before_memory_goes() -> None:
    seen: list[int] = []
    watch = WeightsWatch(0, lambda: seen.append(watch.changes))
    wrapper().sleep()
    assert seen == [0]
    assert watch.changes == 1


def test_a_change_is_told_from_the_next_step_on_until_it_was_heard() -> None:
    watch, rank = WeightsWatch(1, lambda: None), wrapper()
    watch.step_begins(5, (0, 0))
    rank.reload_weights()
    assert not watch.agrees((0, 0))
    assert watch.news() == {}, "the step under way is not computed with them"
    for step in (6, 7):
        watch.step_begins(step, (0, 0))
        assert watch.news() == {1: Change(1, 6)}
    watch.step_begins(8, (0, 1))
    assert watch.news() == {}
    assert watch.agrees((0, 1))


def test_two_ranks_reports_are_joined() -> None:
    first, second = (
        BlockyardWorkerMetadata(changes={0: Change(1, 4)}),
        BlockyardWorkerMetadata(changes={1: Change(2, 5)}),
    )
    assert first.aggregate(second).changes == {0: Change(1, 4), 1: Change(2, 5)}


@pytest.mark.parametrize("worker", [Worker, CPUWorker])
def test_every_call_of_vllms_own_is_known(worker: type) -> None:
    """A further one of a later version has to be looked at: it counts as a change until it is on the list."""
    calls = {name for name in dir(worker) if not name.startswith("_")}
    assert calls - HARMLESS - NO_CALLS <= CHANGING
    assert not CHANGING & HARMLESS
    assert FREES_MEMORY <= CHANGING
