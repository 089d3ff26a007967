"""The production store on the simulator's disk: tags for bytes, virtual time, kills and losses of power."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from blockyard.common.slot_table import PAGE
from blockyard.worker.disk.buffers import aligned
from blockyard.worker.disk.format.values import NO_SALT, Extent
from blockyard.worker.disk.segments import SegmentStore
from sim.clock import Clock
from sim.disk import ModelDisk, read_tags, tag_area, tag_checksum
from sim.memory import Memory, tag
from support.disk_bench import SMALL
from support.disk_faults import READS, Fault, Kind
from support.disk_samples import digest, shape

SHAPE = shape(areas=2, area_bytes=2 * PAGE)


def areas_of(key: bytes) -> list[memoryview]:
    return [tag_area([tag(key, rank, page) for page in range(2)]) for rank in range(2)]


@dataclass
class Node:
    """A worker's use of one disk over its lives, and what it was told."""

    clock: Clock
    disk: ModelDisk
    acknowledged: dict[bytes, Extent] = field(default_factory=dict)
    read: dict[bytes, object] = field(default_factory=dict)

    def start(self) -> list[Extent]:
        self.store, started = SegmentStore.open(self.disk.directory, SMALL, checksum=tag_checksum, now_ns=lambda: 1)
        return [*started.extents, *(extent for number in started.to_scan for extent in self.store.scan(number))]

    def put(self, key: bytes) -> None:
        store = self.store

        def act() -> Extent:
            areas = areas_of(key)
            return store.append(key, NO_SALT, SHAPE, [tag_checksum(area) for area in areas], areas)

        def answer(result: object) -> None:
            if isinstance(result, Extent):
                self.acknowledged[key] = result

        assert self.disk.submit(SHAPE.extent_bytes, act, answer)

    def get(self, extent: Extent) -> None:
        store = self.store

        def act() -> list[list[bytes]]:
            areas = [aligned(2 * PAGE) for _ in range(2)]
            store.read(extent, areas)
            return [read_tags(area) for area in areas]

        assert self.disk.submit(SHAPE.extent_bytes, act, lambda result: self.read.update({extent.key: result}))

    def right(self, key: bytes) -> bool:
        return self.read[key] == [[tag(key, rank, page) for page in range(2)] for rank in range(2)]


def node(seed: int) -> Node:
    clock = Clock()
    return Node(clock, ModelDisk(clock, random.Random(seed), 2 << 20))


def test_the_checksum_of_tags_is_the_model_memorys() -> None:
    memory = Memory(bytes(16), slots=1, pool_bytes=4 * PAGE, slab_bytes=4 * PAGE)
    tags = [tag(digest("k"), 0, page) for page in range(2)]
    memory.pages[1:3] = tags
    area = tag_area(tags)
    assert tag_checksum(area) == memory.hash_area(PAGE, 2 * PAGE)
    assert read_tags(area) == tags
    area[2 * PAGE - 1] ^= 1
    assert tag_checksum(area) != memory.hash_area(PAGE, 2 * PAGE)


@pytest.mark.parametrize("seed", range(20))
def test_what_was_acknowledged_in_virtual_time_survives_kills(seed: int) -> None:
    it, draw, number = node(seed), random.Random(seed), 0
    for _ in range(4):
        found = {extent.key: extent for extent in it.start()}
        assert it.acknowledged.items() <= found.items()
        it.read.clear()
        for extent in found.values():
            it.get(extent)
            it.clock.run_until(it.clock.now + 1.0)
        assert all(it.right(key) for key in found)
        for _ in range(draw.randint(1, 6)):
            number += 1
            it.put(digest("key", number))
        it.clock.run_until(it.clock.now + draw.uniform(0.0, 0.0003))
        it.disk.kill_process()


@pytest.mark.parametrize("seed", range(20))
def test_a_loss_of_power_never_brings_wrong_bytes(seed: int) -> None:
    it = node(seed)
    it.start()
    for number in range(6):
        it.put(digest("key", number))
        it.clock.run_until(it.clock.now + 1.0)
        if number == 2:
            it.store.sync()
    it.disk.cut_power()
    for extent in it.start():
        it.get(extent)
    it.clock.run_until(it.clock.now + 1.0)
    for key, result in it.read.items():
        assert it.right(key) or isinstance(result, Exception)
    for number in range(3):
        assert it.right(digest("key", number)), "it was synced"


def test_a_bad_read_is_an_error_and_the_next_is_not() -> None:
    it = node(1)
    it.start()
    it.put(digest("key", 1))
    it.clock.run_until(1.0)
    (extent,) = it.acknowledged.values()
    it.disk.inject(Fault(Kind.FLIPPED, READS, where=0.5))
    it.get(extent)
    it.clock.run_until(2.0)
    assert isinstance(it.read[extent.key], Exception)
    it.get(extent)
    it.clock.run_until(3.0)
    assert it.right(extent.key)
