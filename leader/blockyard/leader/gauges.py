"""Gauges that are cheaper read than kept. Owns how a scrape reads them; the numbers are the service's."""

import time
from collections import Counter

from prometheus_client import CollectorRegistry

from blockyard.common.metrics.exposition import Metrics
from blockyard.leader.service import Service


def expose(service: Service) -> CollectorRegistry:
    """A registry that shows the leader's numbers as they stand when it is scraped."""
    registry = CollectorRegistry()
    identity = {"cluster": service.config.cluster, "leader": service.config.node_id}
    metrics = Metrics(registry, "leader", identity, counters=service.counters)
    metrics.before_scrape(lambda: _refresh(service))
    return registry


def _refresh(service: Service) -> None:
    gauge = service.counters.set
    core = service.core
    gauge("blockyard_leader_is_leader", float(service.leading()))
    gauge("blockyard_leader_epoch", service.election.epoch_seen)
    healthy = service.roster.broken_since is None and service.election.healthy(time.monotonic())
    gauge("blockyard_leader_etcd_healthy", float(healthy))
    states = Counter(member.state for member in core.members)
    for state in ("live", "partial", "lost"):
        gauge("blockyard_leader_workers", states[state], state=state)
    gauge("blockyard_leader_index_keys", core.index.keys)
    gauge("blockyard_leader_index_copies", core.index.copies)
    gauge("blockyard_leader_snapshots_waiting", len(core.dialogue.turns.waiting))
    gauge("blockyard_leader_orders_open", core.direction.orders.open)
    gauge("blockyard_leader_draining_workers", len(core.direction.drains.by_node))
    gauge("blockyard_leader_uptime_seconds", time.monotonic() - service.started)
