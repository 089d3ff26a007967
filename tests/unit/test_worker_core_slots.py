"""The pool: size classes share it, slabs change hands, generations never come back."""

import pytest

from blockyard.common.messages import attach
from blockyard.common.messages.states import CopyState, KeyState
from blockyard.common.slot_table import PAGE, SlotState
from blockyard.worker.core.policies.lru import LeastRecentlyUsed
from blockyard.worker.core.settings import CoreSettings
from support.worker_core import OK, Engine, Node, keys

NO_ROOM = CopyState.NO_ROOM


def big(node: Node, name: str = "big") -> Engine:
    """An engine of another world whose chunks take two pages."""
    return node.engine(name, fingerprint=b"g" * 32, groups=[attach.GroupShape(0, 256, 2 * PAGE)])


def test_two_geometries_share_the_pool() -> None:
    node = Node(slots=8, per_slab=4)
    small, large = node.engine("small"), big(node)
    assert small.store(keys(1, 2)) == [OK, OK]
    assert large.store(keys(11, 12)) == [OK, OK]
    places = {(one.offset, one.slot_bytes) for one in node.table.values()}
    assert places == {(0, PAGE), (PAGE, PAGE), (4 * PAGE, 2 * PAGE), (6 * PAGE, 2 * PAGE)}


def test_a_class_takes_the_slab_that_has_been_idle_for_longer() -> None:
    node = Node(slots=8, per_slab=4)
    small, large = node.engine("small"), big(node)
    small.store(keys(1, 2, 3, 4, 5, 6, 7, 8))
    small.sees(keys(1, 2, 3, 4))
    assert large.store(keys(11)) == [OK]
    assert small.sees(keys(1, 2, 3, 4)) == [KeyState.HIT] * 4
    assert small.sees(keys(5)) == [KeyState.EVICTED_HOST]
    assert node.count("evictions_total", reason="slab") == 4


def test_a_class_with_room_to_evict_leaves_warmer_slabs_alone() -> None:
    node = Node(slots=8, per_slab=4)
    small, large = node.engine("small"), big(node)
    large.store(keys(11, 12))
    small.store(keys(1, 2, 3, 4))
    assert large.store(keys(13)) == [OK]
    assert small.sees(keys(1, 2, 3, 4)) == [KeyState.HIT] * 4
    assert node.count("evictions_total", reason="room") == 1


@pytest.mark.parametrize("use", ["pinned", "copied", "filling"])
def test_a_slab_in_use_is_not_taken(use: str) -> None:
    node = Node(slots=4, per_slab=4)
    small, large = node.engine("small"), big(node)
    small.store(keys(1, 2, 3))
    if use == "pinned":
        small.acquire(keys(2))
    elif use == "copied":
        small.loading(keys(2))
        small.says(attach.Finish("request"))
    else:
        small.fill(keys(4))
    assert large.store(keys(11)) == [NO_ROOM]
    assert small.sees(keys(1, 2, 3)) == [KeyState.HIT] * 3


def test_an_empty_slab_goes_back_to_everyone() -> None:
    node = Node(slots=4, per_slab=4)
    small, large = node.engine("small"), big(node)
    small.store(keys(1))
    small.says(attach.Forget("weights were updated"))
    assert large.store(keys(11, 12)) == [OK, OK]
    assert node.count("evictions_total", reason="slab") == 0


def test_a_slots_generation_changes_when_its_owner_leaves_and_when_one_comes() -> None:
    node = Node(slots=4)
    engine = node.engine()
    seen: dict[int, list[int]] = {}
    job = engine.fill(keys(1))
    slot = node.slot_of(keys(1)[0])
    seen.setdefault(slot, []).append(node.table[slot].generation)
    engine.resolve_store(job, keys(1))
    engine.store_done(job, CopyState.CANCELLED)
    seen[slot].append(node.table[slot].generation)
    assert node.table[slot].state is SlotState.FREE
    engine.store(keys(2))
    assert node.slot_of(keys(2)[0]) == slot
    seen[slot].append(node.table[slot].generation)
    assert seen[slot] == sorted(set(seen[slot]))


def test_a_generation_stands_from_the_first_copy_to_the_last() -> None:
    node = Node()
    engine = node.engine()
    job = engine.fill(keys(1))
    given = engine.resolve_store(job, keys(1)).generations
    engine.store_done(job, OK)
    node.check()
    assert node.table[node.slot_of(keys(1)[0])].generation == given[0]
    grant = engine.acquire(keys(1)).grant
    assert engine.resolve_load(9, grant, keys(1)).generations == given


def test_eviction_needs_someone_to_ask_for_room() -> None:
    node = Node(slots=4)
    engine = node.engine()
    engine.store(keys(1, 2, 3, 4))
    node.wait(10_000)
    assert engine.sees(keys(1, 2, 3, 4)) == [KeyState.HIT] * 4


def test_groups_of_one_engine_have_slots_of_their_own() -> None:
    node = Node(slots=8, per_slab=4)
    groups = [attach.GroupShape(0, 256, PAGE), attach.GroupShape(1, 64, 2 * PAGE)]
    engine = node.engine(groups=groups)
    engine.store(keys(1))
    engine.store(keys(2), group=1)
    assert engine.sees(keys(1)) == [KeyState.HIT]
    assert engine.sees(keys(2), group=1) == [KeyState.HIT]
    assert engine.sees(keys(1), group=1) == [KeyState.FINGERPRINT]


def test_the_least_recent_key_not_in_use_is_the_victim() -> None:
    order = LeastRecentlyUsed()
    for key in keys(1, 2, 3):
        order.insert(key)
    order.touch(keys(1))
    one, two, three = keys(1, 2, 3)
    assert order.victim(lambda key: False) == two
    assert order.victim(lambda key: key == two) == three
    order.remove(three)
    assert order.victim(lambda key: key == two) == one
    assert order.victim(lambda key: True) is None


@pytest.mark.parametrize(
    ("sizes", "word"),
    [
        ({"min_slot": 100}, "min_slot"),
        ({"slab_bytes": PAGE // 2}, "slab_bytes"),
        ({"pool_bytes": PAGE}, "pool_bytes"),
    ],
)
def test_sizes_that_cannot_be_are_named(sizes: dict[str, int], word: str) -> None:
    good = {"pool_bytes": 8 * PAGE, "slab_bytes": 4 * PAGE, "min_slot": PAGE}
    with pytest.raises(ValueError, match=word):
        CoreSettings(node="n", boot_id=bytes(16), version="0", **(good | sizes))
