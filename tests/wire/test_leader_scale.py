"""The scale run, small: a few real workers and processes that stand for others, and the leader knows exactly what they
hold: at first, while it changes, and after its death. The run is `benchmarks/leader_scale.py`; no time is asserted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from scale import phases, truth
from scale.churn import Churn
from scale.engine_load import EngineLoad
from scale.generator import Task
from scale.keys import LONGEST, Popularity, chain_keys, full_length, own_chain
from scale.leader_face import LeaderFace
from scale.processes import ScaleCluster, wait
from scale.svg import Line, chart

pytestmark = pytest.mark.timeout(300)

GENERATED, REAL, CHUNKS = 20, 3, 1_000
PATIENCE_S = 90.0
SEED = 7


def task(name: str, first: int) -> Task:
    """Half of the generated workers."""
    return Task(
        etcd="",
        cluster="",
        name=name,
        first=first,
        workers=GENERATED // 2,
        chunks=CHUNKS,
        shared=40,
        share=0.2,
        exponent=1.0,
        seed=SEED,
        lease_ttl=30,
        interval=0.1,
    )


@pytest.fixture
def cluster() -> Iterator[ScaleCluster]:
    with ScaleCluster(leader_lease=2) as cluster:
        cluster.start_real(REAL)
        cluster.start_generators([task(f"generated-{number}", number) for number in (0, GENERATED // 2)])
        yield cluster


def index_is_right(cluster: ScaleCluster, load: EngineLoad) -> None:
    """Raises if the leader knows a key too many, one too few, or a wrong one."""
    face = cluster.faces[cluster.leading()]
    truth.wait_settled(cluster.generators, PATIENCE_S)
    assert truth.wait_counts(face, cluster.generators, PATIENCE_S) >= GENERATED * CHUNKS
    assert truth.check_chains(face, cluster.generators, GENERATED, SEED) > GENERATED
    assert truth.check_engines(face, load.stored) > 0


def test_the_index_is_what_all_workers_hold_also_after_the_leader_was_killed(cluster: ScaleCluster) -> None:
    linked = phases.link_all(cluster, PATIENCE_S)
    assert linked["leader_snapshots_total"] >= GENERATED
    begun = cluster.leading()
    with EngineLoad(cluster, 1) as load:
        for generator in cluster.generators:
            generator.ask("rate", rate=100.0)
        before = [generator.ask("state")["changes"] for generator in cluster.generators]

        def all_have_changed_much() -> bool:
            states = [generator.ask("state") for generator in cluster.generators]
            return all(state["changes"] > was + 2_000 for state, was in zip(states, before, strict=True))

        wait(all_have_changed_much, PATIENCE_S, "every generator has made changes")
    index_is_right(cluster, load)
    rebuilt = phases.rebuild(cluster, 100.0, PATIENCE_S)
    assert cluster.leading() != begun
    assert rebuilt["snapshots_sent"] >= GENERATED
    index_is_right(cluster, load)


class Forgetful(LeaderFace):
    """A leader that has lost the last chunk of every chain, or a key of a worker."""

    def __init__(self, face: LeaderFace) -> None:
        self._face = face

    def json(self, path: str, body: bytes | None = None) -> Any:
        answer = self._face.json(path, body)
        if path == "/v1/workers":
            answer["workers"][0]["keys"] -= 1
        return answer

    def match(self, keys: Sequence[bytes]) -> dict[str, int]:
        return {node: length - 1 for node, length in self._face.match(keys).items()}


def test_a_wrong_index_is_noticed(cluster: ScaleCluster) -> None:
    phases.link_all(cluster, PATIENCE_S)
    generators, face = cluster.generators, cluster.faces[cluster.leading()]
    truth.wait_settled(generators, PATIENCE_S)
    truth.wait_counts(face, generators, PATIENCE_S)
    wrong = Forgetful(face)
    with pytest.raises(truth.IndexIsWrong, match="keys, the leader counts"):
        truth.wait_counts(wrong, generators, 0.0)
    with pytest.raises(truth.IndexIsWrong, match="of chain"):
        truth.check_chains(wrong, generators, 1, SEED)
    with pytest.raises(truth.IndexIsWrong, match=r"real-0000 holds"):
        truth.check_engines(face, {"real-0000": ["ab" * 32]})


def test_what_a_worker_holds_is_always_whole_prefixes_and_as_much_as_fits() -> None:
    popularity = Popularity.zipf(40, 0.2, 1.0)
    churn, held = Churn(3, CHUNKS, popularity, SEED), set[bytes]()
    churn.fill()
    held.update(churn.held_keys())
    assert len(held) == churn.held == CHUNKS
    for _ in range(5 * CHUNKS):
        key, is_held = churn.change()
        assert (key in held) != is_held
        held ^= {key}
        assert len(held) + 1 >= CHUNKS and len(held) <= CHUNKS + 1
    chains = churn.chains()
    assert held == {key for chain, length in chains.items() for key in chain_keys(chain, length)}
    assert all(0 < length <= full_length(chain) <= LONGEST for chain, length in chains.items())
    assert any(chain < 40 for chain in chains) and any(chain >= own_chain(3, 0) for chain in chains)


def test_a_chart_is_well_formed() -> None:
    drawn = chart("a < b", "x", "y", [Line("one", [(0, 0), (3, 7)]), Line("none", [], dashed=True)])
    assert "polyline" in {element.tag.rpartition("}")[2] for element in ET.fromstring(drawn).iter()}
