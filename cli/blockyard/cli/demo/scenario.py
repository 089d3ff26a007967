"""Owns the demo's course: which engine is asked what, when one is killed, when the leader is asked.

It never judges what it sees; findings do.
"""

from __future__ import annotations

import asyncio
import time

from blockyard.cli.demo import conversation, measure
from blockyard.cli.demo.block_names import chunk_keys
from blockyard.cli.demo.cluster import DemoCluster
from blockyard.cli.demo.engine import BLOCK_SIZE, BLOCKS_PER_CHUNK
from blockyard.cli.demo.findings import Findings, LeaderView
from blockyard.cli.demo.leader_client import LeaderClient
from blockyard.cli.demo.stages import Stages
from blockyard.cli.demo.worker_client import WorkerClient
from blockyard.common.identity import Key

# Changes reach the leader within tenths of a second, sizes and engines about once a second.
LEADER_DEADLINE_S = 10.0
LEADER_PAUSE_S = 0.1


async def play(cluster: DemoCluster, stages: Stages, findings: Findings) -> None:
    """The whole course on a cluster that was just made; findings are filled as they come."""
    first, second = cluster.engines
    plane = cluster.plane
    async with (
        first.client,
        second.client,
        LeaderClient(plane.leader_url) as leader,
        WorkerClient(plane.worker_url) as worker,
    ):
        await cluster.start(stages)
        with stages.stage("a chat that moves between the engines"):
            findings.turns += await conversation.hold([first, first, second, first])
        with stages.stage(f"one prompt of {len(measure.prompt())} tokens, on each engine"):
            findings.rows.append(await measure.recompute(first))
            findings.rows.append(await measure.prefix_hit(first))
            findings.rows.append(await measure.host_hit(first, worker, "host_hit", "host pool, cache reset"))
            findings.rows.append(
                await measure.host_hit(second, worker, "host_hit_other_engine", f"host pool, by {first.name}")
            )
        keys = chunk_keys(first.world(), measure.prompt(), BLOCK_SIZE, BLOCKS_PER_CHUNK)
        with stages.stage("the leader is asked who holds what"):
            alive = {first.name, second.name}
            findings.leader.append(await _ask_leader(leader, "all engines up", keys, alive))
        killed = cluster.kill_engine(first)
        stages.say(f"[yellow]kill -9[/] {first.name}: processes {', '.join(map(str, killed))}")
        with stages.stage(f"the leader is asked again, without {first.name}"):
            findings.leader.append(await _ask_leader(leader, f"{first.name} killed", keys, {second.name}))
        await cluster.start_engine(first, stages)
        with stages.stage(f"the prompt on the restarted {first.name}"):
            findings.rows.append(
                await measure.host_hit(first, worker, "host_hit_after_kill", "host pool, after kill -9")
            )
        with stages.stage("the worker is killed and started again, three times"):
            restart, engines = cluster.restart_worker, len(cluster.engines)
            findings.rows.append(
                await measure.disk_hit(first, worker, engines, restart, "disk_hit", "disk, worker killed")
            )


async def _ask_leader(leader: LeaderClient, moment: str, keys: list[Key], alive: set[str]) -> LeaderView:
    """Its view once it has caught up, or as it is at the deadline."""
    give_up_at = time.monotonic() + LEADER_DEADLINE_S
    while True:
        view = LeaderView(moment, await leader.workers(), await leader.where(keys[-1]), await leader.match(keys), alive)
        if not view.problems() or time.monotonic() > give_up_at:
            return view
        await asyncio.sleep(LEADER_PAUSE_S)
