"""What reuse was worth: tokens asked for, had, loaded and computed, and the time to first token it saved.

Owns the arithmetic and the names of the engine's own counters. Time is passed in. A request is counted when its
blocks are allocated (nothing to load) or when its load has ended, so that every token asked for ends up as loaded
or computed, once.
"""

from collections import deque
from collections.abc import Callable

PREFILL_STEP = 64
"""Tokens from which on a step counts as prefill: below it the step's fixed cost hides the rate."""

SMOOTHING = 0.2
MAX_STEPS_IN_FLIGHT = 16

Count = Callable[[str, str, float], None]


class PrefillRate:
    """Seconds this engine takes to compute a prompt token, smoothed over its prefill steps; 0 until one was seen."""

    def __init__(self) -> None:
        self._steps: deque[tuple[float, int]] = deque(maxlen=MAX_STEPS_IN_FLIGHT)
        self.seconds_per_token = 0.0

    def step_begins(self, now: float, tokens: int) -> None:
        """A step with `tokens` scheduled tokens is handed to the ranks."""
        self._steps.append((now, tokens))

    def step_ends(self, now: float) -> None:
        """The oldest step under way has given its output."""
        if not self._steps:
            return
        began, tokens = self._steps.popleft()
        if tokens < PREFILL_STEP:
            return
        sample = (now - began) / tokens
        known = self.seconds_per_token
        self.seconds_per_token = known + SMOOTHING * (sample - known) if known else sample


class Accounting:
    """Books of one engine, told to `count(name, label, amount)`."""

    def __init__(self, count: Count) -> None:
        self._count = count
        self.rate = PrefillRate()

    def computed_all(self, asked: int, hit_in_vain: int = 0, failure: str = "") -> None:
        """A request of `asked` tokens beyond the GPU cache begins to be computed, without a load.

        `hit_in_vain` of them were ready at the worker, but a load of them has failed, `failure` says why.
        """
        self._settle(asked, hit_in_vain, 0, failure)

    def load_ended(self, asked: int, hit: int, loaded: int, seconds: float, failure: str = "") -> None:
        """Of `asked` tokens `hit` were ready at the worker and `loaded` arrived, in `seconds`; others by `failure`."""
        self._settle(asked, hit, loaded, failure)
        saved = loaded * self.rate.seconds_per_token - seconds
        if saved > 0:
            self._count("blockyard_engine_ttft_saved_seconds_total", "", saved)

    def _settle(self, asked: int, hit: int, loaded: int, failure: str) -> None:
        loaded, hit = min(loaded, asked), min(hit, asked)
        self._count("blockyard_engine_requested_tokens_total", "", asked)
        self._count("blockyard_engine_hit_tokens_total", "", hit)
        self._count("blockyard_engine_loaded_tokens_total", "", loaded)
        self._count("blockyard_engine_computed_tokens_total", "", asked - loaded)
        if hit > loaded:
            self._count("blockyard_engine_recomputed_tokens_total", failure, hit - loaded)
