"""Commands that let time pass, and those that only look. Owns their words and options."""

from __future__ import annotations

from collections.abc import Callable

from scenarios import words
from scenarios.arguments import Command, milliseconds
from scenarios.leader_side import Leader
from scenarios.world import World


def tick(world: World, command: Command) -> None:
    """`tick [5s]`: time passes in steps of 100 ms; nothing is delivered."""
    ms = milliseconds(command.optional("100ms"))
    command.end()
    world.tick(ms)


def settle(world: World, command: Command) -> None:
    """`settle`: time passes and everything is delivered until nothing more is said; told is only what has changed."""
    command.end()
    world.settle()


def where(world: World, command: Command) -> None:
    """`where a [L1]`: who holds it, as the leader answers."""
    key = world.names.key(command.word("a key"))
    leader = _leader(world, command)
    held = [f"{one.node}{' (stale)' if one.stale else ''}" for one in leader.core.where(key)]
    _answer(world, leader, ", ".join(held) or "nobody")


def match(world: World, command: Command) -> None:
    """`match a,b,c [L1]`: the longest prefix that each worker holds."""
    keys = world.names.parse(command.word("keys"))
    leader = _leader(world, command)
    found = [f"{one.node} {one.length}" for one in leader.core.match(keys)]
    _answer(world, leader, ", ".join(found) or "nobody")


def slots(world: World, command: Command) -> None:
    """`slots n1`: each slot that is not free, who uses it, what is filled of it."""
    worker = world.worker(command.word("a worker"))
    command.end()
    for line in worker.slots():
        world.say(line, "")


def story(world: World, command: Command) -> None:
    """`story n1 a`, `story L1 a`: a key's life as remembered there."""
    name = command.word("a worker or a leader")
    key = world.names.key(command.word("a key"))
    command.end()
    if name in world.workers:
        world.say(f"{world.names.of(key)}:", words.worker_story(world.workers[name].core.story(key)))
    else:
        world.say(f"{world.names.of(key)}:", words.leader_story(world.leader(name).core.story(key)))


def _leader(world: World, command: Command) -> Leader:
    """The one that is named, or the only one."""
    leader = world.leader(command.optional(next(iter(world.leaders), "")))
    command.end()
    return leader


def _answer(world: World, leader: Leader, found: str) -> None:
    if leader.core.epoch is None:
        world.say(leader.name, "does not lead, and answers nothing")
    else:
        world.say(f"{leader.name} answers:", found + (", perhaps more" if leader.core.partial else ""))


VERBS: dict[str, Callable[[World, Command], None]] = {
    "tick": tick,
    "settle": settle,
    "where": where,
    "match": match,
    "slots": slots,
    "story": story,
}
