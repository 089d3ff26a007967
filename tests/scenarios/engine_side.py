"""An engine's processes, as far as a worker hears of them: their sessions, and what they remember of grants and jobs.

Owns the making of their messages, which pass through the production codec. Must never look into a worker.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import msgspec

from blockyard.common.codec import PREFIX_BYTES, Decoder, encode
from blockyard.common.identity import Key
from blockyard.common.messages import attach
from blockyard.common.messages.states import CopyState, KeyState
from blockyard.common.slot_table import PAGE
from scenarios import words
from scenarios.names import Names, digest
from scenarios.script import ScriptError

_FROM: Decoder[attach.FromEngine] = Decoder(attach.FromEngine)
_TO: Decoder[attach.ToEngine] = Decoder(attach.ToEngine)
_TOKENS = 256


@dataclass
class Copy:
    """A rank's job: what it asked for, and the state of each key so far."""

    kind: Literal["store", "load"]
    keys: list[Key]
    states: bytes = b""


class Process:
    """A rank or a scheduler. `welcomed` is its last session that was accepted, and in which worker's start."""

    def __init__(self, engine: Engine, label: str) -> None:
        self.engine = engine
        self.label = label
        self.rank = 0 if label == "scheduler" else int(label.removeprefix("r"))
        self.welcomed = (0, b"")
        self.copies: dict[int, Copy] = {}

    @property
    def name(self) -> str:
        return f"{self.engine.name}.{self.label}"

    def hello(self, previous: tuple[int, bytes]) -> attach.Hello:
        """`previous`: the session to name as ended, and in which of the worker's starts it was; (0, b""): none."""
        session, boot = previous
        return msgspec.structs.replace(self.engine.hello(self), previous=session, previous_boot=boot)

    def resolve(
        self, kind: Literal["store", "load"], job: int, grant: int, keys: list[Key], wait: int
    ) -> attach.Resolve:
        self.copies[job] = Copy(kind, keys)
        return attach.Resolve(self.engine.next_seq(), job, kind, grant, b"".join(keys), wait)

    def done(self, job: int, states: list[CopyState]) -> attach.StoreDone | attach.LoadDone:
        """The end of a job; without states, each key ends as it began."""
        copy = self.copies.get(job)
        if copy is None:
            raise ScriptError(f"{self.name} has asked for no job {job}")
        said = bytes(states) or copy.states
        kind = attach.StoreDone if copy.kind == "store" else attach.LoadDone
        return kind(job, said, said.count(CopyState.OK) * self.engine.area_bytes, 1)

    def hear(self, message: attach.ToEngine, names: Names) -> str:
        """Remember what matters later; returns it in words."""
        match message:
            case attach.Welcome(session=session, boot_id=boot):
                self.welcomed = session, boot
            case attach.Grant(seq):
                keys = self.engine.asked[seq]
                hits = [key for key, state in zip(keys, message.states, strict=True) if state == KeyState.HIT]
                self.engine.grants[message.grant] = hits
                self.engine.last_grant = message.grant
                return words.grant(message, keys, names)
            case attach.Resolved(job=job):
                copy = self.copies[job]
                copy.states = message.states
                return words.resolved(message, copy.keys, names)
            case attach.Refused(code, detail):
                return f"refused, {code}: {detail}"
            case attach.Closing(reason):
                return f"closing, {reason}"
        return words.plain(message)


@dataclass
class Engine:
    """Geometry, jobs and grants of one engine of worker `node`; ranks have `pages` pages of a chunk each."""

    name: str
    node: str
    ranks: int
    world: str
    pages: int
    processes: dict[str, Process] = field(default_factory=dict)
    jobs: dict[int, list[Key]] = field(default_factory=dict)
    grants: dict[int, list[Key]] = field(default_factory=dict)
    asked: dict[int, list[Key]] = field(default_factory=dict)
    last_grant: int = 0
    last_job: int = 0
    _seq: int = 0

    def __post_init__(self) -> None:
        for label in [*(f"r{rank}" for rank in range(self.ranks)), "scheduler"]:
            self.processes[label] = Process(self, label)

    @property
    def area_bytes(self) -> int:
        return self.pages * PAGE

    @property
    def rank_labels(self) -> list[str]:
        return [label for label in self.processes if label != "scheduler"]

    def hello(self, process: Process) -> attach.Hello:
        scheduler = process.label == "scheduler"
        return attach.Hello(
            protocol_min=attach.PROTOCOL_MIN,
            protocol_max=attach.PROTOCOL_MAX,
            version="scenario",
            role="scheduler" if scheduler else "rank",
            engine=self.name,
            model=f"model-of-{self.world}",
            rank=process.rank,
            local_ranks=self.ranks,
            fingerprint=digest(f"world {self.world}"),
            groups=[attach.GroupShape(0, _TOKENS, 0 if scheduler else self.area_bytes)],
            gpu_cache_bytes=0,
        )

    def next_seq(self) -> int:
        self._seq += 1
        return self._seq

    def job(self, number: int) -> int:
        """A job by its number; 0 is a new one."""
        number = number or self.last_job + 1
        self.last_job = max(self.last_job, number)
        return number

    def fill(self, job: int, request: str, parent: bytes, keys: list[Key]) -> attach.Fill:
        self.jobs[job] = keys
        return attach.Fill(job, request, [_run(parent, keys)])

    def acquire(self, request: str, keys: list[Key]) -> attach.Acquire:
        seq = self.next_seq()
        self.asked[seq] = keys
        return attach.Acquire(seq, request, [_run(b"", keys)])


def _run(parent: bytes, keys: list[Key]) -> attach.Run:
    return attach.Run(0, 0, parent, b"".join(keys))


def received(message: attach.FromEngine) -> attach.FromEngine:
    """What the worker gets of it."""
    return _FROM.decode(encode(message, attach.MAX_FRAME)[PREFIX_BYTES:])


def told(message: attach.ToEngine) -> attach.ToEngine:
    """What the engine gets of it."""
    return _TO.decode(encode(message, attach.MAX_FRAME)[PREFIX_BYTES:])
