"""How long a leased key may be relied on, by the local clock alone. Owns the arithmetic of the safety margin;
never asks etcd or a clock."""

from __future__ import annotations

from dataclasses import dataclass, replace

from blockyard.common.errors import ConfigError


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """`margin_s` is how long before etcd may give the key away we stop relying on it: it must cover the drift
    of two clocks over one TTL and the longest step taken between a look at `held` and its effect."""

    ttl_s: int
    margin_s: float

    def __post_init__(self) -> None:
        if self.ttl_s < 1:
            raise ConfigError(f"etcd lease TTL is {self.ttl_s} s; right: 1 s or more")
        if not 0 < self.margin_s < self.ttl_s * 2 / 3:
            raise ConfigError(
                f"etcd lease margin is {self.margin_s} s at a TTL of {self.ttl_s} s; right: more than 0 and "
                "less than two thirds of the TTL, or it would be spent before each renewal"
            )


@dataclass(frozen=True, slots=True)
class Tenure:
    """One unbroken holding of a key. All times are monotonic seconds."""

    create_revision: int
    lease: int
    ttl_s: int
    good_until: float

    @staticmethod
    def begun(create_revision: int, lease: int, ttl_s: int, asked_at: float, margin_s: float) -> Tenure:
        return Tenure(create_revision, lease, ttl_s, asked_at + ttl_s - margin_s)

    def renewed(self, ttl_s: int, asked_at: float, margin_s: float) -> Tenure:
        """etcd counts from when it got the renewal: no earlier than we asked, so we count from there."""
        return replace(self, ttl_s=ttl_s, good_until=asked_at + ttl_s - margin_s)

    def held(self, now: float) -> bool:
        return now < self.good_until
