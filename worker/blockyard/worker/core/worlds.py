"""Worlds: what the engines of one fingerprint have in common. Owns their geometry and their numbers for the
leader.

Must never know sessions. A world outlives its engines, since its chunks do; one without engine and chunk
makes way when a new one needs its place.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from blockyard.common.identity import Fingerprint
from blockyard.common.messages.attach import GroupShape
from blockyard.worker.core.policies.base import EvictionPolicy
from blockyard.worker.core.settings import CoreSettings
from blockyard.worker.core.slots import SizeClass, slot_bytes
from blockyard.worker.disk.format.values import Shape

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
    provisional: bool = False
    """Known from copies on disk alone, perhaps not with all its groups."""
    disowned: list[SizeClass] = field(default_factory=list)
    """Classes of such copies that turned out to be of no use."""


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

        Precondition: if engines have made it, it has these areas and shapes.
        """
        world = self.by_fingerprint.get(fingerprint)
        if world is not None:
            if world.provisional:
                world.model, world.areas, world.provisional = model, areas, False
                self._set_shapes(world, shapes)
            return world
        if len(self.by_fingerprint) >= self._settings.max_worlds and not self._make_way():
            return None
        world = self._add(fingerprint, model, areas)
        self._set_shapes(world, shapes)
        return world

    def recovered(self, shape: Shape) -> SizeClass | None:
        """The class that a copy on disk is of; None when it is of no use now: no place, or other sizes."""
        world = self.by_fingerprint.get(shape.fingerprint)
        if slot_bytes(self._settings, shape.area_bytes, shape.areas) > self._settings.slab_bytes:
            return None
        if world is None:
            if len(self.by_fingerprint) >= self._settings.max_worlds and not self._make_way():
                return None
            world = self._add(shape.fingerprint, shape.model, shape.areas)
            world.provisional = True
        size_class = world.classes.get(shape.group)
        if size_class is None and world.provisional and world.areas == shape.areas:
            known = (shape.group, shape.tokens, shape.area_bytes)
            self._set_shapes(world, tuple(sorted([*world.shapes, known])))
            size_class = world.classes[shape.group]
        return size_class if size_class is not None and size_class.shape == shape else None

    def _add(self, fingerprint: Fingerprint, model: str, areas: int) -> World:
        world = World(self._free_index(), fingerprint, model, areas, ())
        self.by_fingerprint[fingerprint] = world
        return world

    def _set_shapes(self, world: World, shapes: Shapes) -> None:
        """The world has these groups from now on; classes that are not of them are disowned."""
        world.shapes = shapes
        before, world.classes = world.classes, {}
        for group, tokens, area_bytes in shapes:
            shape = Shape(world.fingerprint, world.model, group, tokens, 0, 1, world.areas, area_bytes)
            there = before.get(group)
            if there is not None and there.shape == shape:
                world.classes[group] = before.pop(group)
            else:
                world.classes[group] = self._new_class(world, shape)
        world.disowned += before.values()

    def _new_class(self, world: World, shape: Shape) -> SizeClass:
        size = slot_bytes(self._settings, shape.area_bytes, shape.areas)
        return SizeClass(
            fingerprint=world.fingerprint,
            world=world.index,
            group=shape.group,
            tokens_per_chunk=shape.tokens,
            areas=shape.areas,
            area_bytes=shape.area_bytes,
            slot_bytes=size,
            per_slab=self._settings.slab_bytes // size,
            policy=self._policy(),
            shape=shape,
        )

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
