"""The pool's arithmetic: slabs, size classes, free slots and generations.

Owns which slot lies where and which is free. Must never know what a slot holds.

    pool        | slab 0                  | slab 1         | slab 2        | ...
    class A     | slot | slot | slot | -- |                | (free: any class may carve it)
    class B                               | slot | slot |

Slot numbers are fixed per slab (`slots_per_slab` each, as if all slots were of the smallest size), so a
slab can change its class without renumbering. A slab without a used slot goes back to the free ones at
once.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from blockyard.common.identity import Fingerprint, Key
from blockyard.common.slot_table import align_page
from blockyard.worker.core.policies.base import EvictionPolicy
from blockyard.worker.core.settings import CoreSettings
from blockyard.worker.disk.format.values import Shape

if TYPE_CHECKING:
    from blockyard.worker.core.disk.directories import DiskCopy


@dataclass(slots=True, eq=False)
class Slab:
    """One piece of the pool, carved into the slots of one class. `used` is the step of its last use."""

    number: int
    size_class: "SizeClass"
    free: list[int]
    used: int = 0


@dataclass(slots=True, eq=False)
class SizeClass:
    """Slots of one KV cache group in one world: same geometry, same eviction order."""

    fingerprint: Fingerprint
    world: int
    group: int
    tokens_per_chunk: int
    areas: int
    area_bytes: int
    slot_bytes: int
    per_slab: int
    policy: EvictionPolicy
    shape: Shape
    """What a copy on disk says of it."""
    on_disk: "dict[Key, DiskCopy]" = field(default_factory=dict)
    slabs: OrderedDict[int, Slab] = field(default_factory=OrderedDict)
    """Its slabs, the least recently used first."""
    roomy: dict[int, Slab] = field(default_factory=dict)
    """Those with a free slot."""

    @property
    def area_stride(self) -> int:
        return align_page(self.area_bytes)

    @property
    def all_parts(self) -> int:
        return (1 << self.areas) - 1


def slot_bytes(settings: CoreSettings, area_bytes: int, areas: int) -> int:
    """Bytes of a slot for `areas` ranks with `area_bytes` each."""
    return max(settings.min_slot, align_page(area_bytes) * areas)


class SlotPool:
    """Gives out free slots and takes them back. It evicts nothing: when it has no room, it says so."""

    def __init__(self, settings: CoreSettings) -> None:
        self._settings = settings
        self._generation = 0
        self.free_slabs = list(range(settings.slabs - 1, -1, -1))
        self.slabs: dict[int, Slab] = {}

    def next_generation(self) -> int:
        """A generation that no slot ever had."""
        self._generation += 1
        return self._generation

    def take(self, size_class: SizeClass) -> tuple[Slab, int] | None:
        """A free slot of the class, from a free slab if need be; None when only eviction can help."""
        if not size_class.roomy:
            if not self.free_slabs:
                return None
            self._carve(self.free_slabs.pop(), size_class)
        slab = next(iter(size_class.roomy.values()))
        slot = slab.free.pop()
        if not slab.free:
            del size_class.roomy[slab.number]
        return slab, slot

    def give(self, slab: Slab, slot: int) -> None:
        """Take a slot back. Precondition: it was taken, and its generation has been changed."""
        size_class = slab.size_class
        slab.free.append(slot)
        if len(slab.free) == size_class.per_slab:
            size_class.roomy.pop(slab.number, None)
            del size_class.slabs[slab.number], self.slabs[slab.number]
            self.free_slabs.append(slab.number)
        else:
            size_class.roomy[slab.number] = slab

    def touch(self, slab: Slab, step: int) -> None:
        """The slab's slots are in use in this step."""
        slab.used = step
        slab.size_class.slabs.move_to_end(slab.number)

    def offset(self, slab: Slab, slot: int) -> int:
        """Where the slot starts in the pool."""
        index = slot - slab.number * self._settings.slots_per_slab
        return slab.number * self._settings.slab_bytes + index * slab.size_class.slot_bytes

    def slots_of(self, slab: Slab) -> range:
        """Every slot number of a slab, free or not."""
        first = slab.number * self._settings.slots_per_slab
        return range(first, first + slab.size_class.per_slab)

    @property
    def carved(self) -> int:
        """Slots that exist now: those of all carved slabs."""
        return sum(slab.size_class.per_slab for slab in self.slabs.values())

    def _carve(self, number: int, size_class: SizeClass) -> None:
        slab = Slab(number, size_class, [])
        slab.free = list(reversed(self.slots_of(slab)))
        self.slabs[number] = slab
        size_class.slabs[number] = slab
        size_class.roomy[number] = slab
