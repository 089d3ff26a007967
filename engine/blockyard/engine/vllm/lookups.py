"""One request's standing with the worker: what it asked, what is pinned for it, what it must not load again.

Owns the life of a lookup (asked → answered → used or released) for the scheduler process. Must never block or send:
the manager does.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from vllm.v1.kv_offload.base import OffloadKey, get_offload_block_hash

from blockyard.common.identity import Fingerprint, Key, chunk_key
from blockyard.common.messages.attach import MAX_KEYS, Run
from blockyard.common.messages.states import KeyState
from blockyard.engine.scheduler_client import Grant
from blockyard.engine.vllm.adapters import Adapter
from blockyard.engine.vllm.chains import Chain

NO_EPOCH = -1


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive chunks of one chain, from number `first` on."""

    chain: Chain
    first: int
    keys: tuple[OffloadKey, ...]


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

    def forgo(self, hits: list[OffloadKey]) -> None:
        """These count as missed from now on: their pins are given back."""
        self.states.update(dict.fromkeys(hits, KeyState.DISABLED))


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
    in_vain: bool = field(init=False, default=False)
    """The request begins anew, with nothing computed, and looks up once more."""

    def __post_init__(self) -> None:
        self.arrived = self.hit

    def arrived_before(self, token: int) -> None:
        """Nothing from this token of the request on has arrived."""
        self.arrived = max(0, min(self.arrived, token - self.first))
        self.in_vain = not self.first and not self.arrived

    def arrived_not(self) -> None:
        """What did arrive is of no use without the rest."""
        self.arrived = 0
        self.in_vain = True


@dataclass(slots=True)
class RequestState:
    """What the scheduler side remembers of one request."""

    world: Fingerprint = b""
    chains: tuple[Chain, ...] = ()
    """vLLM's own growing lists of the request's chunks, one for each group."""
    adapter: Adapter | None = None
    epoch: int = NO_EPOCH
    """Of the weights; it is that of `world`."""
    since: int | None = None
    """The earliest step that anything in its GPU blocks comes from; None while it has none."""
    asked: Asked | None = None
    answered: Answered | None = None
    uncounted: bool = False
    """Looked up, and not yet in the accounts."""
    load: Load | None = None
    hit_in_vain: int = 0
    """Tokens that were to be loaded before the request began anew."""
    failure: str = ""
    """Why its first load failed; empty if none did."""
    loading: list[Grant] = field(default_factory=list)
    """Grants whose load is under way."""
    forbidden: set[OffloadKey] = field(default_factory=set)
    """Keys that failed to load for this request: computing is all that is left for them."""
    chunk_keys: dict[OffloadKey, Key] = field(default_factory=dict)

    def enter(self, world: Fingerprint | None, epoch: int) -> None:
        """Its chunks have other names from now on; none at all without a world."""
        self.world, self.epoch = world or b"", epoch
        self.chunk_keys.clear()
        self.forbidden.clear()

    def forget_answers(self) -> None:
        """What the worker has said, or is asked, is about another epoch."""
        self.asked = self.answered = None
        self.loading.clear()

    def wanted(self, computed: int) -> tuple[Stretch, ...]:
        """Chunks beyond the tokens already `computed`: full attention first, since it decides how far windows reach.

        Empty when some group has none, or the request no world: then nothing can be loaded.
        """
        if not self.world:
            return ()
        most = MAX_KEYS // max(1, len(self.chains))
        found = []
        for chain in sorted(self.chains, key=lambda chain: chain.group.window > 0):
            first = computed // chain.group.chunk_tokens
            found.append(Stretch(chain, first, tuple(chain.keys[first : first + most])))
        return tuple(found) if all(stretch.keys for stretch in found) else ()

    def hopeless(self, wanted: tuple[Stretch, ...]) -> bool:
        """Whether a load has to begin with a chunk that failed to load for this request."""
        return any(not s.chain.group.window and s.keys[0] in self.forbidden for s in wanted)

    def take_answer(self, grant: Grant, now: float, lasts: float) -> Answered:
        """Turn the answer to `asked` into the standing one; `lasts` is how long its pins hold, seconds."""
        assert self.asked is not None
        states = {key: KeyState(code) for key, code in zip(self.asked.keys, grant.states, strict=True)}
        states.update((key, KeyState.CORRUPT) for key in self.forbidden if key in states)
        self.answered = Answered(grant if grant.number else None, states, now + lasts)
        self.asked = None
        return self.answered

    def key_of(self, chain: Chain, key: OffloadKey) -> Key:
        """The worker's name for a chunk."""
        known = self.chunk_keys.get(key)
        if known is None:
            known = chunk_key(self.world, get_offload_block_hash(key), chain.group.number)
            self.chunk_keys[key] = known
        return known

    def run_of(self, stretch: Stretch) -> Run:
        """The same as a message names it."""
        chain, first = stretch.chain, stretch.first
        blob = b"".join(self.key_of(chain, key) for key in stretch.keys)
        parent = self.key_of(chain, chain.keys[first - 1]) if first else b""
        return Run(chain.group.number, first, parent, blob, prefix=not chain.group.window)

    def beyond_need(self, computed: int, loaded: int) -> list[OffloadKey]:
        """Hits of the answer that a load of `loaded` tokens beyond those `computed` leaves out."""
        assert self.answered is not None
        end = computed + loaded
        needed: set[OffloadKey] = set()
        for chain in self.chains:
            group = chain.group
            first = max(computed // group.chunk_tokens, group.first_chunk_needed(end))
            needed.update(chain.keys[first : -(-end // group.chunk_tokens)])
        return [key for key, state in self.answered.states.items() if state is KeyState.HIT and key not in needed]

    def placed(self, keys: tuple[OffloadKey, ...]) -> Iterator[tuple[Chain, int, OffloadKey]]:
        """Each key's chain and its number there; keys of no chain are left out."""
        for key in keys:
            for chain in self.chains:
                index = chain.index(key)
                if index is not None:
                    yield chain, index, key


def all_missed(wanted: tuple[Stretch, ...], reason: KeyState, until: float) -> Answered:
    """An answer without the worker: nothing is to be loaded, for this reason."""
    return Answered(None, dict.fromkeys(keys_of(wanted), reason), until)


def keys_of(stretches: Iterable[Stretch]) -> tuple[OffloadKey, ...]:
    """All keys, in the order in which runs list them."""
    return tuple(key for stretch in stretches for key in stretch.keys)


def stretches_of(placed: list[tuple[Chain, int, OffloadKey]]) -> list[Stretch]:
    """The same chunks with neighbours put together."""
    begins = [at for at in range(len(placed)) if not at or not _follows(placed[at - 1], placed[at])]
    found = []
    for begin, end in pairwise([*begins, len(placed)]):
        chain, first, _ = placed[begin]
        found.append(Stretch(chain, first, tuple(key for _, _, key in placed[begin:end])))
    return found


def _follows(one: tuple[Chain, int, OffloadKey], other: tuple[Chain, int, OffloadKey]) -> bool:
    return one[0] is other[0] and one[1] + 1 == other[1]
