"""Question: how much of what a plain socket carries is left when workers read chunks from each other?

The worker's fetching threads and peer server, in two processes over loopback, against `sendall` and `recv_into` of the
same chunks over as many connections; with and without TLS. What the worker reads is verified; what the bare socket
brings is not, or is hashed and no more. The cores are left out. Subjects take turns within each round, in changing
order; ratios are medians over rounds.

    python benchmarks/peers.py [--rounds 20] [--mib 2 32] [--total-mib 256] [--json FILE]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

from wires.chunks import CONNECTIONS, Chunks, Pass, Reader
from wires.holder import cpu_seconds, hold
from wires.readers import BareReader, PeerReader

MIB = 1 << 20
Times = dict[str, list[Pass]]


@contextlib.contextmanager
def subjects(chunks: Chunks) -> Iterator[tuple[dict[str, Reader], Connection]]:
    """Who reads these chunks, and who tells the other side's CPU time."""
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=hold, args=(chunks, theirs), daemon=True)
    process.start()
    theirs.close()
    peer_port, bare_port = ours.recv()
    with chunks.pool() as pool:
        pool.memory.map[:] = bytes(chunks.total_bytes)
        found: dict[str, Reader] = {
            "peer": PeerReader(chunks, pool, peer_port),
            "socket": BareReader(chunks, pool, bare_port, hashed=False),
            "socket, hashed": BareReader(chunks, pool, bare_port, hashed=True),
        }
        try:
            yield found, ours
        finally:
            for one in found.values():
                one.close()
            ours.close()
            process.join(10)


def rounds(chunks: Chunks, count: int) -> Times:
    """Each subject reads everything once in each round; what the first round shows is left out."""
    times: Times = defaultdict(list)
    with subjects(chunks) as (found, other):
        names = list(found)
        for number in range(count + 1):
            for name in names[number % len(names) :] + names[: number % len(names)]:
                other.send(True)
                cpu, begun = other.recv() + cpu_seconds(), time.perf_counter()
                found[name].read()
                wall = time.perf_counter() - begun
                other.send(True)
                if number:
                    times[name].append(Pass(wall, other.recv() + cpu_seconds() - cpu))
                else:
                    other.recv()
    return times


def summary(chunks: Chunks, times: Times) -> dict[str, object]:
    """Medians of GB/s and of CPU-seconds for each GB; the peer's rate over the socket's of the same round."""
    size = chunks.total_bytes / 1e9
    told: dict[str, object] = {"chunk_bytes": chunks.size, "chunks": chunks.count, "tls": bool(chunks.tls)}
    for name, passes in times.items():
        told[name] = {
            "gb_per_s": round(statistics.median(size / one.wall for one in passes), 3),
            "least": round(min(size / one.wall for one in passes), 3),
            "most": round(max(size / one.wall for one in passes), 3),
            "cpu_s_per_gb": round(statistics.median(one.cpu / size for one in passes), 3),
        }
    ratios = {}
    for name in ("socket", "socket, hashed"):
        pairs = zip(times[name], times["peer"], strict=True)
        ratios[f"peer / {name}"] = round(statistics.median(bare.wall / peer.wall for bare, peer in pairs), 3)
    return told | {"ratios": ratios}


def certificate(folder: Path) -> tuple[str, ...]:
    """A certificate that is its own authority; nothing where openssl is not installed."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    try:
        subprocess.run([*command, "-subj", "/CN=bench", "-keyout", key, "-out", cert], check=True, capture_output=True)
    except FileNotFoundError:
        return ()
    return str(cert), str(cert), str(key)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--mib", type=int, nargs="+", default=[2, 32], help="sizes of a chunk")
    parser.add_argument("--total-mib", type=int, default=256, help="read in one pass")
    parser.add_argument("--json", type=Path, help="file to write the numbers to")
    options = parser.parse_args()
    load_before = os.getloadavg()
    measured = []
    with tempfile.TemporaryDirectory(prefix="by-peers-") as name:
        for tls in dict.fromkeys([(), certificate(Path(name))]):
            for size in options.mib:
                chunks = Chunks(options.total_mib // size, size * MIB, tls)
                measured.append(summary(chunks, rounds(chunks, options.rounds)))
    result = {
        "rounds": options.rounds,
        "connections": CONNECTIONS,
        "load_average": {"before": load_before, "after": os.getloadavg()},
        "measured": measured,
    }
    text = json.dumps(result, indent=2)
    print(text)
    if options.json is not None:
        options.json.write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
