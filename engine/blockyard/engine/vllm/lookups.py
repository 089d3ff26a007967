"""One request's standing with the worker: what it asked, what is pinned for it, what it must not load again.

Owns the life of a lookup (asked → answered → used or released) for the scheduler process. Must never block or send:
the manager does.
"""

from dataclasses import dataclass, field

from vllm.v1.kv_offload.base import OffloadKey

from blockyard.common.identity import Key
from blockyard.common.messages.states import KeyState
from blockyard.engine.scheduler_client import Grant


@dataclass(slots=True)
class Asked:
    """An Acquire under way: its sequence number, the keys in the order asked, and when the first was sent."""

    seq: int
    keys: tuple[OffloadKey, ...]
    since: float


@dataclass(slots=True)
class Answered:
    """A Grant in hand: a state per key, good until `expires` (engine clock). `grant` is None when nothing is pinned."""

    grant: Grant | None
    states: dict[OffloadKey, KeyState]
    expires: float

    def covers(self, keys: tuple[OffloadKey, ...], now: float) -> bool:
        """Whether this answer may stand for `keys` now."""
        return now < self.expires and all(key in self.states for key in keys)


@dataclass(slots=True)
class Load:
    """A load under way: tokens asked for beyond the GPU cache, tokens to be loaded, and when it began.

    `first` is the request's first token to be loaded; `arrived` falls when chunks are reported as failed.
    """

    asked: int
    hit: int
    first: int
    began: float
    arrived: int = field(init=False)

    def __post_init__(self) -> None:
        self.arrived = self.hit

    @property
    def in_vain(self) -> bool:
        """The request begins anew, with nothing computed."""
        return not self.first and not self.arrived

    def arrived_before(self, token: int) -> None:
        """Nothing from this token of the request on has arrived."""
        self.arrived = max(0, min(self.arrived, token - self.first))


@dataclass(slots=True)
class RequestState:
    """What the scheduler side remembers of one request."""

    chain: list[OffloadKey] = field(default_factory=list)
    """vLLM's own growing list of the request's chunk keys, first chunk first."""
    asked: Asked | None = None
    answered: Answered | None = None
    uncounted: bool = False
    """Looked up, and not yet in the accounts."""
    load: Load | None = None
    computed_whole: bool = False
    """Nothing of its load arrived, and it is in the accounts as computed: vLLM looks it up once more."""
    loading: list[Grant] = field(default_factory=list)
    """Grants whose load is under way."""
    forbidden: set[OffloadKey] = field(default_factory=set)
    """Keys that failed to load for this request: computing is all that is left for them."""
    chunk_keys: dict[OffloadKey, Key] = field(default_factory=dict)

    def take_answer(self, grant: Grant, now: float, lasts: float) -> Answered:
        """Turn the answer to `asked` into the standing one; `lasts` is how long its pins hold, seconds."""
        assert self.asked is not None
        states = {key: KeyState(code) for key, code in zip(self.asked.keys, grant.states, strict=True)}
        self.answered = Answered(grant if grant.number else None, states, now + lasts)
        self.asked = None
        return self.answered


def all_missed(keys: tuple[OffloadKey, ...], reason: KeyState, until: float) -> Answered:
    """An answer without the worker: nothing is to be loaded, for this reason."""
    return Answered(None, dict.fromkeys(keys, reason), until)
