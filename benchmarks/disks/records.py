"""Directories with many records, and what a start on them takes. The extents are holes: a start reads logs alone."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from blockyard.common.slot_table import PAGE
from blockyard.worker.disk.format.log import LogHeader, Put, Record, Seal, ShapeRecord, encode_frame
from blockyard.worker.disk.format.names import log_name, segment_name
from blockyard.worker.disk.format.segment_header import SegmentHeader
from blockyard.worker.disk.format.values import Shape

MIB = 1 << 20
_SEGMENT_BYTES = 256 * MIB
_START_SECONDS = 300.0
_STORE_START = """
import json, re, sys, time
from pathlib import Path
from blockyard.worker.disk.real import RealDirectory
from blockyard.worker.disk.segments import SegmentStore
from blockyard.worker.disk.settings import StoreSettings
def anonymous():
    return int(re.search(r"^RssAnon:\\s+(\\d+) kB$", Path("/proc/self/status").read_text(), re.M)[1]) << 10
before, cpu, wall = anonymous(), time.process_time(), time.perf_counter()
store, started = SegmentStore.open(RealDirectory(Path(sys.argv[1]), direct=True), StoreSettings(1 << 60, 0, 1 << 28))
done = {"seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu, "bytes": anonymous() - before}
print(json.dumps(done | {"extents": len(started.extents), "to_scan": len(started.to_scan)}))
"""


def starts(folder: Path, records: int) -> dict[str, object]:
    """The store alone, with chunks of 2 MiB; a whole worker, with chunks of 4 KiB so that its disk may be small,
    less what it takes with an empty directory. Logs are not in memory before.
    """
    found: dict[str, object] = {"records": records}
    for name, chunk_bytes, measure in (("store", 2 * MIB, _store_start), ("worker", PAGE, _worker_start)):
        place = folder / f"{name}-{records}"
        place.mkdir()
        segments = _write(place, records, chunk_bytes)
        log_bytes = sum(file.stat().st_size for file in place.glob("*.log"))
        found[name] = {"segments": segments, "log_bytes": log_bytes, **measure(place, records)}
        shutil.rmtree(place)
    return found


def _write(place: Path, records: int, chunk_bytes: int) -> int:
    """How many segments there are now."""
    shape = Shape(b"f" * 32, "bench", 0, 256, 0, 1, 1, chunk_bytes)
    each = (_SEGMENT_BYTES - PAGE) // shape.extent_bytes
    for segment, first in enumerate(range(0, records, each)):
        uuid, count = os.urandom(16), min(each, records - first)
        used = PAGE + count * shape.extent_bytes
        header = SegmentHeader(uuid, segment, _SEGMENT_BYTES, time.time_ns()).pack()
        with open(place / segment_name(segment), "wb") as file:
            file.write(header)
            file.truncate(used)
        log: list[Record] = [ShapeRecord(0, *shape)]
        for number in range(count):
            offset = PAGE + number * shape.extent_bytes
            log.append(Put(0, offset, first + number + 1, os.urandom(32), bytes(8)))
        log.append(Seal(used))
        frames = (encode_frame(uuid, number, record) for number, record in enumerate(log))
        _write_cold(
            place / log_name(segment), LogHeader(uuid, segment, _SEGMENT_BYTES).pack() + b"".join(frames) + bytes(PAGE)
        )
    return segment + 1


def _write_cold(path: Path, data: bytes) -> None:
    """A file that no page of is in memory."""
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fdatasync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _store_start(place: Path, records: int) -> dict[str, object]:
    out = subprocess.run(
        [sys.executable, "-c", _STORE_START, str(place)], capture_output=True, check=True, timeout=_START_SECONDS
    ).stdout
    found: dict[str, float] = json.loads(out)
    if found["extents"] != records or found["to_scan"]:
        raise SystemExit(f"the store found {found}, not {records} records")
    return {
        "seconds": round(found["seconds"], 2),
        "cpu_seconds": round(found["cpu_seconds"], 2),
        "bytes_per_record": round(found["bytes"] / records),
    }


def _worker_start(place: Path, records: int) -> dict[str, object]:
    empty = place.with_name("empty")
    empty.mkdir()
    base, full = _until_known(empty, 0, 1 << 31), _until_known(place, records, records * 2 * PAGE * 2 + (1 << 31))
    shutil.rmtree(empty)
    return {
        "seconds": round(full["seconds"] - base["seconds"], 2),
        "cpu_seconds": round(full["cpu_seconds"] - base["cpu_seconds"], 2),
        "bytes_per_record": round((full["bytes"] - base["bytes"]) / records),
        "process_bytes": round(full["bytes"]),
    }


def _until_known(place: Path, records: int, capacity: int) -> dict[str, float]:
    """From the start of the process until its metrics say that all copies are known."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "blockyard.cli.main", "worker", "--socket", str(place.parent / "worker.sock")]
    command += ["--host-pool", "64MiB", "--slab-size", "1MiB", "--metrics-listen", f"127.0.0.1:{port}", "--insecure"]
    command += ["--disk", f"{place}:{capacity}B", "--disk-floor", "0B", "--log-level", "warning"]
    begun = time.perf_counter()
    worker = subprocess.Popen(command)
    try:
        while (known := _copies(port)) is None or known < records:
            if worker.poll() is not None or time.perf_counter() - begun > _START_SECONDS:
                raise SystemExit(f"the worker knows {known} of {records} copies")
            time.sleep(0.05)
        seconds = time.perf_counter() - begun
        status = Path(f"/proc/{worker.pid}/status").read_text(encoding="utf-8")
        ticks = Path(f"/proc/{worker.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[11:13]
        resident = re.search(r"^RssAnon:\s+(\d+) kB$", status, re.MULTILINE)
        assert resident is not None
        cpu = sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
        return {"seconds": seconds, "cpu_seconds": cpu, "bytes": float(int(resident[1]) << 10)}
    finally:
        worker.terminate()
        worker.wait(60)


def _copies(port: int) -> float | None:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            found = re.search(r"^blockyard_worker_disk_copies\S* (\S+)$", answer.read().decode(), re.MULTILINE)
    except OSError:
        return None
    return float(found[1]) if found else None
