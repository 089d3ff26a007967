"""Commands of people that come to orders, and what workers report of these. Owns their words and options.

A report is said by hand, whatever the worker itself makes of its orders.
"""

from __future__ import annotations

from collections.abc import Callable

from blockyard.common.messages import cluster
from blockyard.leader.core.requests import Accepted, Denied, DrainAsked, PurgeAsked, Request, UndrainAsked
from scenarios.arguments import Command, milliseconds
from scenarios.script import ScriptError
from scenarios.world import World


def ask(world: World, command: Command) -> None:
    """`ask L1 purge keys=a,b [within=60s]`, `ask L1 drain n1`, `ask L1 undrain n1`: what a person wants of a leader."""
    leader = world.leader(command.word("a leader"))
    answer, instructions = leader.core.ask(world.now, _request(world, command))
    command.end()
    match answer:
        case Accepted(cause, counts):
            world.say(f"{leader.name} answers:", " ".join([cause, *(f"{count} {name}" for name, count in counts)]))
        case Denied(code, detail):
            world.say(f"{leader.name} denies:", f"{code}, {detail}")
    leader.carry_out(instructions)


def report(world: World, command: Command) -> None:
    """`report n1 L1 job=1 done [count=1] [left=1] [reason=busy]`: what it says of an order; also refused, progress."""
    node, name, outcome = command.word("a worker"), command.word("a leader"), command.word("how it went")
    if outcome not in ("done", "refused", "expired", "progress"):
        raise ScriptError(f"report {node} {outcome}: must be done, refused, expired or progress")
    job, count, left = (command.number(one, 0) for one in ("job", "count", "left"))
    link, _ = world.way(f"{node}->{name}")
    link.send(True, cluster.OrderReport(job, outcome, count, left, command.option("reason")))  # type: ignore[arg-type]
    command.end()
    world.say("waiting:", f"{node}'s report of job {job}")


def orders(world: World, command: Command) -> None:
    """`orders L1`: the book of orders, as the leader shows it."""
    leader = world.leader(command.word("a leader"))
    command.end()
    for job in leader.core.direction.orders:
        shown = f"job {job.number} {job.kind} at {job.node} is {job.state} {job.reason}"
        world.say(f"{leader.name} shows:", shown.strip())


def _request(world: World, command: Command) -> Request:
    match command.word("what is wanted"):
        case "purge":
            keys, within = world.names.parse(command.required("keys")), milliseconds(command.option("within", "60s"))
            return PurgeAsked(tuple(keys), seconds=within / 1000)
        case "drain":
            return DrainAsked(command.word("a worker"))
        case "undrain":
            return UndrainAsked(command.word("a worker"))
        case other:
            raise ScriptError(f"ask {other}: must be purge, drain or undrain")


VERBS: dict[str, Callable[[World, Command], None]] = {"ask": ask, "report": report, "orders": orders}
