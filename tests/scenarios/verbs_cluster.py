"""Commands of workers, leaders, etcd and the links between them. Owns their words and options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import msgspec

from blockyard.common.slot_table import PAGE
from blockyard.leader.core import events as leader_events
from blockyard.leader.core.settings import LeaderSettings
from blockyard.worker.core import events as worker_events
from blockyard.worker.core.settings import CoreSettings
from scenarios import words
from scenarios.arguments import Command, milliseconds
from scenarios.links import Link, read_down, read_up
from scenarios.script import ScriptError
from scenarios.world import World

_ALL = 1 << 30
_COMPUTED = {"pool_bytes", "slab_bytes", "min_slot", "node", "boot_id", "version", "cluster"}


def worker(world: World, command: Command) -> None:
    """`worker n1 boot [pages=8] [slab=4] [any setting=…]`, `worker n1 drain`."""
    name, verb = command.word("a worker"), command.word("what it does")
    if verb == "boot":
        _boot_worker(world, name, command)
    elif verb == "drain":
        command.end()
        world.worker(name).feed(worker_events.DrainAsked("it stops"))
    else:
        raise ScriptError(f"worker {name} {verb}: must be boot or drain")


def register(world: World, command: Command) -> None:
    """`register n1 [incarnation=12]`: etcd has a registration of it, as the worker knows; leaders hear of it later."""
    name = command.word("a worker")
    incarnation = world.etcd.write(command.number("incarnation", 0))
    command.end()
    one = world.worker(name)
    if one.link is not None:
        one.lost(one.link)
    world.etcd.registrations[name] = incarnation
    for leader in world.leaders.values():
        leader.news.append(leader_events.WorkerRegistered(name, incarnation))
    one.feed(worker_events.Incarnated(incarnation))


def expire(world: World, command: Command) -> None:
    """`expire n1`: its lease in etcd has ended, its registration is gone. Leaders hear of it later, it does not."""
    name = command.word("a worker")
    command.end()
    if name not in world.etcd.registrations:
        raise ScriptError(f"expire {name}: etcd has no registration of it")
    del world.etcd.registrations[name]
    for leader in world.leaders.values():
        leader.news.append(leader_events.WorkerUnregistered(name, world.etcd.revision))


def leader(world: World, command: Command) -> None:
    """`leader L1 boot [any setting=…]`, `elected [epoch=7]`, `resigns`, `lists` (reads etcd's list of workers),
    `misremembers n1 a` (its index is wrong about one key, as after a fault of its own).
    """
    name, verb = command.word("a leader"), command.word("what it does")
    match verb:
        case "boot":
            kinds = {one.name: str(one.type) for one in fields(LeaderSettings)}
            settings = _settings(command, kinds)
            world.boot_leader(name, LeaderSettings(world.cluster, "scenario", **settings))
        case "elected":
            one = world.leader(name)
            one.elected(world.etcd.elect(name, command.number("epoch", 0)))
        case "resigns":
            world.etcd.leader = None
            world.leader(name).handle(leader_events.LostLeadership())
        case "lists":
            world.list_workers(world.leader(name))
        case "misremembers":
            world.leader(name).misremember(command.word("a worker"), world.names.key(command.word("a key")))
        case _:
            raise ScriptError(f"leader {name} {verb}: must be boot, elected, resigns, lists or misremembers")
    command.end()


def cluster(world: World, command: Command) -> None:
    """`cluster n1,n2 L1,L2 [revision=30] [any setting of a worker]`: all started, registered, linked and in step.

    The first leader leads; etcd's revisions begin after `revision`.
    """
    nodes, leaders = command.word("workers").split(","), command.word("leaders").split(",")
    world.etcd.revision = command.number("revision", 0)
    settings = [f"{name}={value}" for name, value in command.rest().items()]
    command.end()
    with world.transcript.muted():
        for name in leaders:
            world.boot_leader(name, LeaderSettings(world.cluster, "scenario"))
        for node in nodes:
            _boot_worker(world, node, Command(" ".join(["boot", *settings])))
            register(world, Command(f"register {node}"))
        world.leader(leaders[0]).elected(world.etcd.elect(leaders[0], 0))
        for node in nodes:
            world.open_link(node, leaders[0])
    world.settle()


def etcd(world: World, command: Command) -> None:
    """`etcd away`, `etcd back`; `etcd wiped`, `etcd restored revision=5 [n1=3]` (its registrations then).

    Nobody hears of it by itself.
    """
    verb = command.word("what happens to it")
    match verb:
        case "away" | "back":
            world.etcd.away = verb == "away"
        case "wiped":
            world.etcd.wipe()
        case "restored":
            revision = command.number("revision", 0)
            world.etcd.restore(revision, {node: int(one) for node, one in command.rest().items()})
        case _:
            raise ScriptError(f"etcd {verb}: must be away, back, wiped or restored")
    command.end()
    if verb in ("wiped", "restored"):
        for one in world.leaders.values():
            one.news.clear()


def link(world: World, command: Command) -> None:
    """`link n1 L1`: the worker reads etcd and connects; hello and welcome are delivered. `hello`: nothing is yet."""
    one = world.open_link(command.word("a worker"), command.word("a leader"))
    only_hello = command.may("hello")
    command.end()
    if not only_hello:
        world.deliver(one, True, 1)
        world.deliver(one, False, 1)


def unlink(world: World, command: Command) -> None:
    """`unlink n1 L1 [seen-by=n1]`: their link is gone, and with it what was on its way."""
    node, name = command.word("a worker"), command.word("a leader")
    seen_by = command.option("seen-by")
    command.end()
    one, _ = world.way(f"{node}->{name}")
    for upward in (True, False):
        if one.queue(upward):
            world.say("lost:", _listed(world, one, upward))
            one.queue(upward).clear()
    if seen_by in ("", node) and one.worker_open:
        world.worker(node).lost(one)
    if seen_by in ("", name) and one.leader_open:
        world.leader(name).lost(one)


def deliver(world: World, command: Command) -> None:
    """`deliver n1->L1 [2]`, `deliver etcd->L1 [1]`: so many frames or news; all that wait."""
    name = command.word("a way such as n1->L1")
    count = int(command.optional(str(_ALL)))
    command.end()
    if name.startswith("etcd->"):
        world.news(world.leader(name.removeprefix("etcd->")), count)
    else:
        one, upward = world.way(name)
        world.deliver(one, upward, count)


def drop(world: World, command: Command) -> None:
    """`drop n1->L1 [1]`: so many of the frames that wait never arrive; all of them."""
    one, upward = world.way(command.word("a way such as n1->L1"))
    count = int(command.optional(str(_ALL)))
    command.end()
    queue = one.queue(upward)
    for _ in range(min(count, len(queue))):
        world.say("lost:", _told(world, upward, queue.popleft()))


def dup(world: World, command: Command) -> None:
    """`dup n1->L1`: the first frame that waits will arrive twice."""
    one, upward = world.way(command.word("a way such as n1->L1"))
    command.end()
    queue = one.queue(upward)
    queue.insert(1, queue[0])
    world.say("waiting:", _listed(world, one, upward))


def swap(world: World, command: Command) -> None:
    """`swap n1->L1`: the first two frames that wait will arrive in the other order."""
    one, upward = world.way(command.word("a way such as n1->L1"))
    command.end()
    queue = one.queue(upward)
    queue[0], queue[1] = queue[1], queue[0]
    world.say("waiting:", _listed(world, one, upward))


def pause(world: World, command: Command) -> None:
    """`pause L1`, `pause n1`: as SIGSTOP does."""
    _set_paused(world, command, True)


def resume(world: World, command: Command) -> None:
    """`resume L1`: as SIGCONT does."""
    _set_paused(world, command, False)


def _set_paused(world: World, command: Command, paused: bool) -> None:
    name = command.word("a worker or a leader")
    command.end()
    one = world.workers.get(name) or world.leader(name)
    one.paused = paused


def _listed(world: World, one: Link, upward: bool) -> str:
    return "; ".join(_told(world, upward, frame) for frame in one.queue(upward)) or "nothing"


def _told(world: World, upward: bool, frame: bytes) -> str:
    return words.message(read_up(frame) if upward else read_down(frame), world.names)


def _boot_worker(world: World, name: str, command: Command) -> None:
    pages, slab = command.number("pages", 8), command.number("slab", 4)
    kinds = {one.name: str(one.type) for one in msgspec.structs.fields(CoreSettings)}
    sizes = {"pool_bytes": pages * PAGE, "slab_bytes": slab * PAGE, "min_slot": PAGE}
    settings: dict[str, Any] = {**sizes, **_settings(command, kinds)}
    command.end()
    if name in world.workers:
        world.say(f"{name}", "starts anew, with an empty pool and another boot id")
    world.boot_worker(name, lambda boot_id: CoreSettings(node=name, boot_id=boot_id, version="scenario", **settings))


def _settings(command: Command, kinds: dict[str, str]) -> dict[str, Any]:
    """Options that are fields of a core's settings: times as `5s`, everything else a whole number."""
    taken: dict[str, Any] = {}
    for name, text in command.rest().items():
        if name not in kinds or name in _COMPUTED:
            raise ScriptError(f"{command.verb}: there is no setting {name!r}")
        taken[name] = milliseconds(text) / 1000 if "float" in kinds[name] else int(text)
    return taken


VERBS: dict[str, Callable[[World, Command], None]] = {
    "worker": worker,
    "register": register,
    "expire": expire,
    "leader": leader,
    "cluster": cluster,
    "etcd": etcd,
    "link": link,
    "unlink": unlink,
    "deliver": deliver,
    "drop": drop,
    "dup": dup,
    "swap": swap,
    "pause": pause,
    "resume": resume,
}
