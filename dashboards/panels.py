"""What the overview shows: each panel's title, queries and unit as plain data.

Owns the PromQL; names a metric only through the table, so a panel over a series that nobody exports cannot be
built. Must never know Grafana's JSON.
"""

from __future__ import annotations

from dataclasses import dataclass

from blockyard.common.metrics.spec import IDENTITY
from blockyard.common.metrics.table import TABLE


@dataclass(frozen=True)
class Query:
    """One PromQL expression and the name of its lines."""

    expr: str
    legend: str


@dataclass(frozen=True)
class Panel:
    """One panel. `apart` is the line beside a stack; lines matching `right` have the right axis."""

    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    stacked: bool = False
    apart: str = ""
    right: str = ""


def of(name: str) -> str:
    """A metric narrowed to the chosen clusters and, where it has them, workers; KeyError if undeclared."""
    chosen = [label for label in ("cluster", "worker") if label in IDENTITY[TABLE[name].part]]
    return name + "{" + ",".join(f'{label}=~"${label}"' for label in chosen) + "}"


def rate(name: str, *by: str) -> str:
    """A counter's growth a second, summed to `by`."""
    return f"{_sum(by)} (rate({of(name)}[$__rate_interval]))"


def total(name: str, *by: str) -> str:
    """A gauge summed to `by`."""
    return f"{_sum(by)} ({of(name)})"


def leading(name: str, *by: str) -> str:
    """A gauge as the acting leader has it; a standby may hold numbers of a time when it led."""
    leads = f"{of('blockyard_leader_is_leader')} == 1"
    return f"{_sum(by)} ({of(name)} and on (cluster, leader) {leads})"


def _sum(by: tuple[str, ...]) -> str:
    return f"sum by ({', '.join(by)})" if by else "sum"


PANELS = (
    Panel(
        "Hit tokens by tier",
        "Tokens looked up by engines, a second: those found, by tier, and those missed, by why. "
        "The height of the stack is all that was looked up.",
        "suffix: tokens/s",
        (
            Query(rate("blockyard_worker_hit_tokens_total", "tier"), "hit in {{tier}}"),
            Query(rate("blockyard_worker_miss_tokens_total", "reason"), "missed: {{reason}}"),
        ),
        stacked=True,
    ),
    Panel(
        "TTFT saved",
        "Time to first token saved over all requests, in each second: the time computing would have taken "
        "less the time loading took. An estimate of the engines, from their own rates.",
        "suffix: s/s",
        (Query(rate("blockyard_engine_ttft_saved_seconds_total", "engine"), "{{engine}}"),),
    ),
    Panel(
        "Bytes by leg",
        "Bytes copied between GPU memory and the host pool, as the engines that copy report them.",
        "Bps",
        (Query(rate("blockyard_worker_copy_bytes_total", "leg"), "{{leg}}"),),
    ),
    Panel(
        "Occupancy",
        "Bytes of the host pool's slots by state. What lies between the stack and the pool's line is not yet "
        "given to any chunk size.",
        "bytes",
        (
            Query(total("blockyard_worker_slot_bytes", "state"), "{{state}}"),
            Query(total("blockyard_worker_pool_bytes"), "pool"),
        ),
        stacked=True,
        apart="pool",
    ),
    Panel(
        "Evictions",
        "Ready chunks removed, a second, by why: room for a chunk of the same size, a slab given to another "
        "size, or an engine that said its chunks are void.",
        "suffix: chunks/s",
        (Query(rate("blockyard_worker_evictions_total", "reason"), "{{reason}}"),),
    ),
    Panel(
        "Failures",
        "Events a second that cost a recomputation or a refusal. No request fails by them; "
        "a checksum mismatch means that wrong bytes were found and not used.",
        "cps",
        (
            Query(rate("blockyard_worker_loads_failed_total"), "loads failed"),
            Query(rate("blockyard_worker_fills_dropped_total"), "fills dropped"),
            Query(rate("blockyard_worker_fills_refused_total"), "fills refused"),
            Query(rate("blockyard_worker_checksum_mismatches_total"), "checksum mismatches"),
            Query(rate("blockyard_worker_handshakes_refused_total"), "handshakes refused"),
            Query(rate("blockyard_worker_attaches_refused_total"), "attaches refused"),
            Query(rate("blockyard_worker_frames_refused_total"), "frames refused"),
            Query(rate("blockyard_engine_detaches_total"), "engine detaches"),
        ),
    ),
    Panel(
        "Engines and workers",
        "Engine processes with a session at a worker, by role, and workers known to the leader, by state.",
        "short",
        (
            Query(total("blockyard_worker_sessions", "role", "state"), "{{role}} sessions {{state}}"),
            Query(leading("blockyard_leader_workers", "state"), "workers {{state}}"),
        ),
    ),
    Panel(
        "Leader",
        "Keys and copies in the leader's index (left) and which process leads (right, 1 or 0).",
        "short",
        (
            Query(leading("blockyard_leader_index_keys"), "keys"),
            Query(leading("blockyard_leader_index_copies"), "copies"),
            Query(total("blockyard_leader_is_leader", "leader"), "{{leader}} leads"),
        ),
        right="/ leads$/",
    ),
    Panel(
        "Disk space",
        "Bytes on disk, all directories together: what is of use, the files that hold it, and what they may have. "
        "Between the first two lies what was given up and waits for its file to go.",
        "bytes",
        (
            Query(total("blockyard_worker_disk_live_bytes"), "of use"),
            Query(total("blockyard_worker_disk_file_bytes"), "files"),
            Query(total("blockyard_worker_disk_capacity_bytes"), "capacity"),
        ),
    ),
    Panel(
        "Disk bytes",
        "Bytes a second: written as chunks came, moved on when their file was given back, and read to be loaded.",
        "Bps",
        (
            Query(rate("blockyard_worker_disk_written_bytes_total"), "written"),
            Query(rate("blockyard_worker_disk_moved_bytes_total"), "moved on"),
            Query(rate("blockyard_worker_disk_read_bytes_total"), "read"),
        ),
    ),
    Panel(
        "Disk chunks",
        "Chunks a second: written, read and verified, and copies given up because their file was (left); chunks with "
        "a copy on disk, and those that should have one and do not yet (right).",
        "short",
        (
            Query(rate("blockyard_worker_disk_writes_completed_total"), "written"),
            Query(rate("blockyard_worker_disk_reads_completed_total"), "read"),
            Query(rate("blockyard_worker_disk_evictions_total"), "given up"),
            Query(total("blockyard_worker_disk_copies"), "chunks with a copy"),
            Query(total("blockyard_worker_disk_spill_backlog"), "chunks without one yet"),
        ),
        right="/^chunks /",
    ),
    Panel(
        "Disk failures",
        "Events a second: writes and reads that came to nothing, by why, and chunks that left host memory before their "
        "turn to be written (left); directories that are left alone and operations that hang, now (right).",
        "short",
        (
            Query(rate("blockyard_worker_disk_writes_failed_total", "reason"), "writes failed: {{reason}}"),
            Query(rate("blockyard_worker_disk_reads_failed_total", "reason"), "reads failed: {{reason}}"),
            Query(rate("blockyard_worker_disk_spills_dropped_total"), "not written in time"),
            Query(total("blockyard_worker_disk_devices_left_alone", "worker"), "left alone now, of {{worker}}"),
            Query(total("blockyard_worker_disk_operations_hanging", "worker"), "hanging now, of {{worker}}"),
        ),
        right="/ now, /",
    ),
)
