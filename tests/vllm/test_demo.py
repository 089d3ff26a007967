"""`blockyard demo` as a newcomer runs it: it holds, says so in its report, and leaves nothing however it ends."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs an installed vLLM")

from blockyard.cli.demo import process_table
from blockyard.cli.demo.block_names import block_hashes
from support.leader_process import wait_for

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

RUN_SECONDS = 560
START_SECONDS = 180
END_SECONDS = 60


class Demo:
    """A demo in a process and a folder of its own; everything it starts carries a mark in its environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.temp = folder / "t"
        self.temp.mkdir()
        token = secrets.token_hex(8)
        self._mark = f"DEMO_TEST={token}"
        self._output = folder / "output"
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "blockyard.cli.main", "demo", "--logs", str(folder / "logs")],
                cwd=folder,
                env={**os.environ, "DEMO_TEST": token, "TMPDIR": str(self.temp)},
                stdout=output,
                stderr=output,
            )

    def output(self) -> str:
        return self._output.read_text(errors="replace")

    def report(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.folder / "demo-report.json").read_text())
        return content

    def wait_engines_started(self) -> None:
        """Both engines' processes are there, and busy importing."""
        logs = [self.folder / "logs" / f"vllm-{letter}.log" for letter in "ab"]
        wait_for(
            lambda: all(log.exists() and log.stat().st_size for log in logs),
            START_SECONDS,
            "engines start",
            self.output,
        )

    def processes(self) -> list[int]:
        return process_table.marked(self._mark)

    def wait_gone(self) -> None:
        wait_for(lambda: not self.processes(), END_SECONDS, "no process is left")


@pytest.fixture
def demo() -> Iterator[Demo]:
    # pytest's own folders are too deep for a socket's path.
    folder = Path(tempfile.mkdtemp(prefix="by-"))
    running = Demo(folder)
    yield running
    if running.process.poll() is None:
        running.process.kill()
        running.process.wait(END_SECONDS)
    running.wait_gone()
    shutil.rmtree(folder)


def test_it_holds_and_leaves_nothing(demo: Demo) -> None:
    code = demo.process.wait(RUN_SECONDS)
    assert code == 0, demo.output()
    report = demo.report()
    assert report["held"] and report["problems"] == []
    hits = ("prefix_hit", "host_hit", "host_hit_other_engine", "host_hit_after_kill", "disk_hit")
    assert set(report["rows"]) == {"recompute", *hits}
    assert report["rows"]["recompute"]["cached_tokens"] == 0
    for name in hits:
        row = report["rows"][name]
        assert row["ttft_s"] > 0
        assert row["cached_tokens"] == report["rows"]["prefix_hit"]["cached_tokens"]
        assert row["tokens_equal"]
    assert set(report["ratios"]) == {"host_hit_over_prefix_hit", "recompute_over_host_hit"}
    assert demo.processes() == []
    assert list(demo.temp.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_everything(demo: Demo, number: signal.Signals) -> None:
    demo.wait_engines_started()
    demo.process.send_signal(number)
    time.sleep(0.1)
    demo.process.send_signal(number)
    assert demo.process.wait(END_SECONDS) == 130, demo.output()
    assert demo.processes() == []
    assert list(demo.temp.iterdir()) == []
    assert not (demo.folder / "demo-report.json").exists()


def test_killed_it_leaves_no_process(demo: Demo) -> None:
    demo.wait_engines_started()
    demo.process.kill()
    demo.process.wait(END_SECONDS)
    demo.wait_gone()


def test_blocks_are_named_as_vllm_names_them() -> None:
    from vllm.utils.hashing import sha256_cbor
    from vllm.v1.core import kv_cache_utils

    kv_cache_utils.init_none_hash(sha256_cbor)
    tokens = list(range(100))
    parent, expected = None, []
    for start in (0, 32, 64):
        parent = kv_cache_utils.hash_block_tokens(sha256_cbor, parent, tokens[start : start + 32])
        expected.append(parent)
    assert block_hashes(tokens, 32) == expected
