"""Commands of engines: sessions that come and go, stores, lookups and loads.

Owns their words and options. Each feeds the events that its process would cause, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable

from blockyard.common.identity import Key
from blockyard.common.messages import attach
from blockyard.common.messages.states import CopyState
from blockyard.worker.core import events
from scenarios import words
from scenarios.arguments import Command, milliseconds
from scenarios.engine_side import Engine, Process
from scenarios.script import ScriptError
from scenarios.worker_side import Worker
from scenarios.world import World, boot_id


def attach_(world: World, command: Command) -> None:
    """`attach e1 [on=n1] [ranks=2] [world=A] [pages=1]`, ranks first; `attach e1.r0`.

    `again`: by the same processes as before, which name their sessions; `names=2 [start=1]`: a process names this
    session of this start of the worker (its present one).
    """
    name, _, label = command.word("an engine").partition(".")
    again, names, start = command.may("again"), command.number("names", 0), command.number("start", 0)
    engine = world.engines.get(name)
    if engine is None:
        node = command.option("on", "n1")
        ranks, pages = command.number("ranks", 1), command.number("pages", 1)
        engine = world.engines[name] = Engine(name, world.worker(node).name, ranks, command.option("world", "A"), pages)
    command.end()
    worker = worker_of(world, engine)
    boot = boot_id(start) if start else worker.core.settings.boot_id
    for one in [label] if label else list(engine.processes):
        process = world.process(f"{name}.{one}")
        worker.introduce(process, process.welcomed if again else (names, boot if names else b""))


def kill(world: World, command: Command) -> None:
    """`kill e1.scheduler`, `kill e1`: its processes are dead, and the worker's pidfds say so."""
    for process in _processes(world, command):
        worker = worker_of(world, process.engine)
        for session in worker.watched(process):
            worker.feed(events.ProcessGone(session))


def cut(world: World, command: Command) -> None:
    """`cut e1.r0`: its socket is gone, its process is not."""
    process = world.process(command.word("a process"))
    command.end()
    worker_of(world, process.engine).feed(events.SessionClosed(process.welcomed[0]))


def fill(world: World, command: Command) -> None:
    """`fill e1 [job=1] keys=a,b [parent=z] [request=q]`."""
    engine = world.engine(command.word("an engine"))
    job = engine.job(command.number("job", 0))
    keys = world.names.parse(command.required("keys"))
    request, parent = command.option("request", "q"), command.option("parent")
    command.end()
    _hear(world, engine, engine.fill(job, request, world.names.key(parent) if parent else b"", keys))


def resolve(world: World, command: Command) -> None:
    """`resolve e1.r0 job=1 [keys=a,b] [wait=100ms]`: a rank asks for the places of a store."""
    process = world.process(command.word("a rank"))
    job = command.number("job", process.engine.last_job)
    keys = command.option("keys")
    asked = world.names.parse(keys) if keys else process.engine.jobs.get(job, [])
    wait = milliseconds(command.option("wait", "0ms"))
    command.end()
    worker_of(world, process.engine).hear(process, process.resolve("store", job, 0, asked, wait))


def load(world: World, command: Command) -> None:
    """`load e1.r0 [job=2] [grant=1] [keys=a]`: a rank asks for the places of a load; all hits of the last grant."""
    process = world.process(command.word("a rank"))
    engine = process.engine
    job = engine.job(command.number("job", 0))
    grant = command.number("grant", engine.last_grant)
    keys = command.option("keys")
    asked = world.names.parse(keys) if keys else engine.grants.get(grant, [])
    command.end()
    worker_of(world, engine).hear(process, process.resolve("load", job, grant, asked, 0))


def done(world: World, command: Command) -> None:
    """`done e1.r0 [job=1] [states=ok,corrupt]`: a rank's copies of a job have ended."""
    process = world.process(command.word("a rank"))
    job = command.number("job", process.engine.last_job)
    states = [_state(word) for word in command.option("states").split(",") if word]
    command.end()
    worker_of(world, process.engine).hear(process, process.done(job, states))


def checksums(world: World, command: Command) -> None:
    """`checksums n1 [keys=a]`: what was asked to be hashed is; `fail`: it cannot be."""
    worker = world.worker(command.word("a worker"))
    fails = command.may("fail")
    wanted = command.option("keys")
    command.end()
    hash_waiting(worker, world.names.parse(wanted) if wanted else None, fails)


def hash_waiting(worker: Worker, keys: list[Key] | None = None, fails: bool = False) -> None:
    """Answer each ComputeChecksum that waits, or those of some keys."""
    waiting, worker.to_check = worker.to_check, []
    for order in waiting:
        if keys is not None and worker.table[order.slot].key not in keys:
            worker.to_check.append(order)
        elif fails:
            worker.feed(events.ChecksumFailed(order.slot, order.generation, "hashing failed"))
        else:
            sums = tuple(range(1, order.areas + 1))
            worker.feed(events.ChecksumDone(order.slot, order.generation, sums))


def store(world: World, command: Command) -> None:
    """`store e1 keys=a,b`: fill, copies of all ranks, and checksums unless `unverified`; told in sum."""
    engine = world.engine(command.word("an engine"))
    keys = world.names.parse(command.required("keys"))
    unverified = command.may("unverified")
    command.end()
    worker = worker_of(world, engine)
    with world.in_sum():
        job = engine.job(0)
        _hear(world, engine, engine.fill(job, "store", b"", keys))
        ranks = [engine.processes[label] for label in engine.rank_labels]
        for rank in ranks:
            worker.hear(rank, rank.resolve("store", job, 0, keys, 0))
        for rank in ranks:
            if CopyState.OK in rank.copies[job].states:
                worker.hear(rank, rank.done(job, []))
        if not unverified:
            hash_waiting(worker)


def hint(world: World, command: Command) -> None:
    """`hint e1 [request=q] [priority=70] [ttl=10s] [session=talk] [release] [pin=1s]`: what a request says."""
    engine = world.engine(command.word("an engine"))
    message = attach.Hints(
        command.option("request", "q"),
        command.number("priority", attach.DEFAULT_PRIORITY),
        milliseconds(command.option("ttl", "0ms")),
        command.option("session"),
        command.may("release"),
        milliseconds(command.option("pin", "0ms")),
    )
    command.end()
    _hear(world, engine, message)


def hints(world: World, command: Command) -> None:
    """`hints e1 [request=q]`: what its worker keeps of that."""
    engine = world.engine(command.word("an engine"))
    request = command.option("request", "q")
    command.end()
    worker = worker_of(world, engine)
    kept = worker.core.hints.get(engine.processes["scheduler"].welcomed[0], request)
    world.say(f"{worker.name} keeps of {request}:", words.hints(kept))


def acquire(world: World, command: Command) -> None:
    """`acquire e1 keys=a,b [request=q]`."""
    engine = world.engine(command.word("an engine"))
    keys = world.names.parse(command.required("keys"))
    request = command.option("request", "q")
    command.end()
    _hear(world, engine, engine.acquire(request, keys))


def release(world: World, command: Command) -> None:
    """`release e1 [grant=1] [keys=a]`: of the last grant, all of it."""
    engine = world.engine(command.word("an engine"))
    grant = command.number("grant", engine.last_grant)
    keys = world.names.parse(command.option("keys"))
    command.end()
    _hear(world, engine, attach.Release(grant, b"".join(keys)))


def finish(world: World, command: Command) -> None:
    """`finish e1 [request=q]`."""
    engine = world.engine(command.word("an engine"))
    request = command.option("request", "q")
    command.end()
    _hear(world, engine, attach.Finish(request))


def forget(world: World, command: Command) -> None:
    """`forget e1`: drop every chunk of this engine's world."""
    engine = world.engine(command.word("an engine"))
    command.end()
    _hear(world, engine, attach.Forget("reset"))


def bye(world: World, command: Command) -> None:
    """`bye e1`, `bye e1.r0`: a clean end."""
    for process in _processes(world, command):
        worker_of(world, process.engine).hear(process, attach.Bye())


def worker_of(world: World, engine: Engine) -> Worker:
    worker = world.worker(engine.node)
    if worker.paused:
        raise ScriptError(f"{worker.name} is paused and gets nothing")
    return worker


def _hear(world: World, engine: Engine, message: attach.FromEngine) -> None:
    """The scheduler says something."""
    worker_of(world, engine).hear(engine.processes["scheduler"], message)


def _processes(world: World, command: Command) -> list[Process]:
    name = command.word("an engine or a process")
    command.end()
    return [world.process(name)] if "." in name else list(world.engine(name).processes.values())


def _state(word: str) -> CopyState:
    for state in CopyState:
        if state.label == word:
            return state
    raise ScriptError(f"state {word!r}: must be one of {', '.join(state.label for state in CopyState)}")


VERBS: dict[str, Callable[[World, Command], None]] = {
    "attach": attach_,
    "kill": kill,
    "cut": cut,
    "fill": fill,
    "resolve": resolve,
    "load": load,
    "done": done,
    "checksums": checksums,
    "store": store,
    "hint": hint,
    "hints": hints,
    "acquire": acquire,
    "release": release,
    "finish": finish,
    "forget": forget,
    "bye": bye,
}
