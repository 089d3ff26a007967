"""Eviction policies by the name that a configuration gives. Owns the names; must never know how one works."""

from collections.abc import Callable, Mapping

from blockyard.worker.core.policies.base import EvictionPolicy
from blockyard.worker.core.policies.lru import LeastRecentlyUsed

POLICIES: Mapping[str, Callable[[], EvictionPolicy]] = {"lru": LeastRecentlyUsed}
