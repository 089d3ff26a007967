"""Answers as JSON values: the machine's views in the words of the HTTP API. Owns names and shapes; decides
nothing.
"""

import time
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec
from aiohttp import web

from blockyard.common.identity import DIGEST_BYTES, Key
from blockyard.common.messages.cluster import TIER_DISK, TIER_GPU, TIER_HOST
from blockyard.leader.core.drains import Drain
from blockyard.leader.core.orders import Job
from blockyard.leader.core.views import Degradation, Holding, WorkerView
from blockyard.leader.service import Service

Json = dict[str, object]

_TIERS = ((TIER_GPU, "gpu"), (TIER_HOST, "host"), (TIER_DISK, "disk"))
_SHOWN = 80


class BadQuery(ValueError):
    """A query that cannot be answered; the message is one line saying what would be right."""


class StandsBy(Exception):
    """This process does not lead at the moment."""


def reply(answer: Json, status: int = 200) -> web.Response:
    """An answer as the body of a response."""
    return web.Response(body=msgspec.json.encode(answer), status=status, content_type="application/json")


def parse_key(text: str) -> Key:
    """The key in 64 hex digits."""
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    # fromhex passes over blanks, so the text's own length counts too.
    if len(key) != DIGEST_BYTES or len(text) != 2 * DIGEST_BYTES:
        raise BadQuery(f"key {text[:_SHOWN]!r}: must be {2 * DIGEST_BYTES} hex digits, and has {len(text)} characters")
    return key


def parse_keys(texts: Sequence[str], limit: int) -> list[Key]:
    """The keys of a match query."""
    if not texts:
        raise BadQuery("keys: must name at least one key")
    if len(texts) > limit:
        raise BadQuery(f"keys: {len(texts)} are named, the limit is match_max_keys = {limit}")
    return [parse_key(text) for text in texts]


def workers(service: Service) -> Json:
    """Every registered worker."""
    core = service.core
    drains = core.direction.drains.by_node
    return framed(service, {"workers": [_worker(view, drains.get(view.node)) for view in core.workers()]})


def where(service: Service, key: Key) -> Json:
    """Who holds one key."""
    return framed(service, {"key": key.hex(), "holders": [_holding(found) for found in service.core.where(key)]})


def match(service: Service, keys: Sequence[Key]) -> Json:
    """The longest prefix of the keys on each worker, whole and per tier."""
    core = service.core
    found = [
        {
            "node": prefix.node,
            "length": prefix.length,
            "tiers": {"gpu": prefix.gpu, "host": prefix.host, "disk": prefix.disk},
            "stale": core.members.by_node[prefix.node].link is None,
            "draining": prefix.node in core.direction.drains.by_node,
        }
        for prefix in core.match(keys)
    ]
    return framed(service, {"keys": len(keys), "workers": found})


def orders(service: Service, cause: str) -> Json:
    """The book of orders, or what of it has one cause."""
    found = [job for job in service.core.direction.orders if cause in ("", job.cause)]
    return framed(service, {"orders": [_order(job) for job in found]})


def readiness(service: Service) -> Json:
    """Whether this process answers as leader, and all that is degraded, since when."""
    leading = service.leading()
    found = list(service.core.degraded()) if leading else []
    if not leading and service.election.other is None:
        found.append(Degradation("leadership", service.lost_reason, service.lost_since or service.started))
    if (broken := service.roster.broken_since) is not None:
        found.append(Degradation("etcd", "etcd does not answer; registrations may be out of date", broken))
    answer: Json = {
        "ready": leading,
        "role": "leader" if leading else "standby",
        "partial": service.core.partial,
        "insecure": service.config.insecure,
        "degraded": [{"what": item.what, "detail": item.detail, "since": wall_clock(item.since)} for item in found],
    }
    return answer if leading else answer | {"leader": other_leader(service)}


def other_leader(service: Service) -> Json | None:
    """Where the leader is that this process stands by for."""
    other = service.election.other
    return {"node": other.node, "http": other.http, "link": other.link} if other else None


def wall_clock(since: float) -> str:
    """A monotonic time as UTC."""
    age = time.monotonic() - since
    return datetime.fromtimestamp(time.time() - age, UTC).isoformat(timespec="milliseconds")


def framed(service: Service, answer: Json) -> Json:
    """The answer, after what it is worth."""
    epoch = service.core.epoch
    return {"epoch": epoch.number if epoch else 0, "partial": service.core.partial, **answer}


def _holding(found: Holding) -> Json:
    tiers = [name for bit, name in _TIERS if found.tiers & bit]
    return {"node": found.node, "incarnation": found.incarnation, "tiers": tiers, "stale": found.stale}


def _order(job: Job) -> Json:
    return {
        "job": job.number,
        "cause": job.cause,
        "worker": job.node,
        "kind": job.kind,
        "state": job.state,
        "keys": len(job.keys),
        "from": job.source or None,
        "fingerprint": job.fingerprint.hex() or None,
        "count": job.count,
        "left": job.left,
        "reason": job.reason,
    }


def _drain(drain: Drain) -> Json:
    return {
        "cause": drain.cause,
        "since": wall_clock(drain.since),
        "state": "refused" if drain.refused else "waiting" if drain.obstacle else drain.state,
        "left": drain.left,
        "copied": drain.copied,
        "in_flight": sum(len(job.keys) for job in drain.copies),
        "unplaceable": drain.unplaceable,
        "reason": drain.obstacle or drain.reason,
    }


def _worker(view: WorkerView, drain: Drain | None) -> Json:
    # What a worker without a link said last of its engines may be long out of date.
    known = view.state != "lost"
    return {
        "node": view.node,
        "incarnation": view.incarnation,
        "state": view.state,
        "since": wall_clock(view.since),
        "version": view.info.version,
        "boot_id": view.info.boot_id,
        "metrics": view.info.metrics,
        "keys": view.keys,
        "applied_seq": view.applied_seq,
        "pool_bytes": view.info.pool_bytes if view.pool_bytes is None else view.pool_bytes,
        "used_bytes": view.used_bytes,
        "peer": view.info.peer or None,
        "drain": _drain(drain) if drain else None,
        "engines": [
            {"engine": engine.engine, "model": engine.model, "state": engine.state if known else "unknown"}
            for engine in view.engines
        ],
    }
