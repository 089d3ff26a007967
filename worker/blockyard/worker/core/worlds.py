"""Worlds: what the engines of one fingerprint have in common. Owns their geometry and their numbers for the
leader.

Must never know sessions. A world outlives its engines, since its chunks do; one without engine and chunk
makes way when a new one needs its place.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from blockyard.common.identity import Fingerprint
from blockyard.common.messages.attach import GroupShape
from blockyard.worker.core.disk.wire import DiskWorld
from blockyard.worker.core.policies.base import EvictionPolicy
from blockyard.worker.core.settings import CoreSettings
from blockyard.worker.core.slots import SizeClass, slot_bytes

_LAST_INDEX = 65535

Shapes = tuple[tuple[int, int, int], ...]


def shapes_of(groups: list[GroupShape]) -> Shapes:
    """(group, tokens per chunk, area bytes) of each group, in the order of group numbers."""
    return tuple(sorted((shape.group, shape.tokens_per_chunk, shape.area_bytes) for shape in groups))


@dataclass(slots=True, eq=False)
class World:
    """One fingerprint as this worker numbers it. `engines` counts those that may still use it."""

    index: int
    fingerprint: Fingerprint
    model: str
    areas: int
    shapes: Shapes
    classes: dict[int, SizeClass] = field(default_factory=dict)
    engines: int = 0


class WorldBook:
    """All worlds by fingerprint, at most `settings.max_worlds`."""

    def __init__(self, settings: CoreSettings, policy: Callable[[], EvictionPolicy]) -> None:
        self._settings = settings
        self._policy = policy
        self._next_index = 0
        self.by_fingerprint: dict[Fingerprint, World] = {}

    def get(self, fingerprint: Fingerprint) -> World | None:
        return self.by_fingerprint.get(fingerprint)

    def enter(self, fingerprint: Fingerprint, model: str, areas: int, shapes: Shapes) -> World | None:
        """The world of this fingerprint, made if need be; None when there are too many of them.

        Precondition: if it exists, it has these areas and shapes.
        """
        world = self.by_fingerprint.get(fingerprint)
        if world is not None:
            return world
        if len(self.by_fingerprint) >= self._settings.max_worlds and not self._make_way():
            return None
        world = World(self._free_index(), fingerprint, model, areas, shapes)
        described = DiskWorld(fingerprint, model, areas, shapes)
        for group, tokens, area_bytes in shapes:
            size = slot_bytes(self._settings, area_bytes, areas)
            per_slab = self._settings.slab_bytes // size
            world.classes[group] = SizeClass(
                fingerprint, world.index, group, tokens, areas, area_bytes, size, per_slab, self._policy(), described
            )
        self.by_fingerprint[fingerprint] = world
        return world

    def recovered(self, described: DiskWorld) -> World | None:
        """The world that a copy on disk is of; None when it is of no use now: no place, or other sizes."""
        world = self.by_fingerprint.get(described.fingerprint)
        if world is not None:
            return world if (world.areas, world.shapes) == (described.areas, described.shapes) else None
        if any(
            slot_bytes(self._settings, area, described.areas) > self._settings.slab_bytes
            for *_, area in described.shapes
        ):
            return None
        return self.enter(described.fingerprint, described.model, described.areas, described.shapes)

    def classes(self) -> list[SizeClass]:
        """Every size class of every world."""
        return [one for world in self.by_fingerprint.values() for one in world.classes.values()]

    def _make_way(self) -> bool:
        for world in self.by_fingerprint.values():
            if not world.engines and not any(one.slabs or one.on_disk for one in world.classes.values()):
                del self.by_fingerprint[world.fingerprint]
                return True
        return False

    def _free_index(self) -> int:
        taken = {world.index for world in self.by_fingerprint.values()}
        while self._next_index in taken:
            self._next_index = (self._next_index + 1) % (_LAST_INDEX + 1)
        index = self._next_index
        self._next_index = (index + 1) % (_LAST_INDEX + 1)
        return index
