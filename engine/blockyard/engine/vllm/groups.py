"""The KV cache groups of an engine, as chunks see them.

Owns how many tokens a chunk of each group has, and which of its pages a load can ever want. A group is read once from
vLLM's configuration, in scheduler and ranks alike. Must never know a request.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheSpec
    from vllm.v1.kv_offload.config import OffloadingConfig


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """One group. `number` is vLLM's; `window` is how many tokens back its layers see, 0 for all of them.

    Pages of a chunk before `first_page` lie outside the window of every position at which a load may end. They are
    neither stored nor loaded: vLLM gives their blocks away while a request runs, and what is in them is anybody's.
    """

    number: int
    block_tokens: int
    blocks_per_chunk: int
    window: int = 0
    first_page: int = 0

    @property
    def chunk_tokens(self) -> int:
        return self.block_tokens * self.blocks_per_chunk

    def first_chunk_needed(self, end: int) -> int:
        """The first chunk that has anything to say to the token at `end`."""
        return max(0, end - self.window) // self.chunk_tokens if self.window else 0


def cache_groups(offloading: "OffloadingConfig", cache: "KVCacheConfig") -> tuple[CacheGroup, ...]:
    """Groups of this engine in vLLM's order. Precondition: `support.why_not` has nothing to say."""
    pages = offloading.cache.blocks_per_chunk
    # A load ends where a chunk of every group ends, or a token before that. With chunks of different lengths it
    # may end inside one, so that any page may be wanted.
    aligned = len({group.tokens_per_block for group in offloading.groups}) == 1
    found = []
    for group in offloading.groups:
        window = _window(cache.kv_cache_groups[group.group_id].kv_cache_spec)
        wanted = -(-window // group.tokens_per_block) if window and aligned else pages
        found.append(CacheGroup(group.group_id, group.tokens_per_block, pages, window, max(0, pages - wanted)))
    return tuple(found)


def window_blocks(cache: "KVCacheConfig") -> list[int]:
    """Tokens per block of the groups with a window."""
    specs = [group.kv_cache_spec for group in cache.kv_cache_groups]
    return [spec.block_size for spec in specs if _window(spec)]


def largest_that_divides(interval: int | None, most: int, block_tokens: list[int]) -> int:
    """The most blocks per chunk, up to `most`, with which every chunk of a window divides `interval`; 0 for none.

    vLLM keeps a window at each multiple of the interval and refuses to start if that lies inside a chunk.
    """
    if not interval:
        return most
    sizes = range(most, 0, -1)
    return next((n for n in sizes if all(interval % (n * tokens) == 0 for tokens in block_tokens)), 0)


def resumes_at_the_failure(groups: tuple[CacheGroup, ...]) -> bool:
    """Whether a request can go on from what did load.

    Elsewhere vLLM has to begin anew: a window before the failure was perhaps never loaded.
    """
    return len(groups) == 1 and not groups[0].window


def _window(spec: "KVCacheSpec") -> int:
    """Tokens that a position may look back to, itself and what vLLM keeps beyond included; 0: all."""
    from vllm.v1.kv_cache_interface import SlidingWindowSpec, UniformTypeKVCacheSpecs

    if isinstance(spec, UniformTypeKVCacheSpecs):
        spec = next(iter(spec.kv_cache_specs.values()))
    return spec.sliding_window + spec.extra_retained_tokens if isinstance(spec, SlidingWindowSpec) else 0
