"""The demo's verdict: whatever does not hold is a problem of one line, and nothing else is."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from blockyard.cli.demo.chat_client import Completion
from blockyard.cli.demo.control_plane import NODE
from blockyard.cli.demo.conversation import Turn
from blockyard.cli.demo.findings import Findings, LeaderView
from blockyard.cli.demo.leader_client import Match
from blockyard.cli.demo.measure import PROMPT_CHUNKS, SHARED_TOKENS, Row
from blockyard.cli.demo.shared_memory import SharedMemory

ANSWER = Completion("text", (1, 2, 3), SHARED_TOKENS + 24, SHARED_TOKENS, 0.04, 0.2, "length")
COMPUTED = replace(ANSWER, cached_tokens=0, first_token_s=2.0)
VIEW = LeaderView(
    moment="now",
    workers=[{"node": NODE, "engines": [{"engine": "a"}]}],
    last_chunk_holders=[{"node": NODE, "tiers": ["host"]}],
    match=[Match(NODE, PROMPT_CHUNKS)],
    engines_alive={"a"},
)


def findings(host: Completion = ANSWER, computed: Completion = COMPUTED, view: LeaderView = VIEW) -> Findings:
    rows = [
        Row("recompute", "a", "computed", [computed]),
        Row("prefix_hit", "a", "own", [ANSWER]),
        Row("host_hit", "b", "host", [ANSWER, host]),
    ]
    return Findings(turns=[Turn("a", ANSWER, 0)], rows=rows, leader=[view])


def test_nothing_is_wrong_when_everything_held() -> None:
    assert findings().problems() == []
    assert findings().ratio("recompute", "host_hit") == pytest.approx(50)


def test_a_tie_in_the_recompute_is_no_problem() -> None:
    assert findings(computed=replace(COMPUTED, token_ids=(1, 2, 4))).problems() == []


@pytest.mark.parametrize(
    ("seen", "told"),
    [
        (findings(host=replace(ANSWER, cached_tokens=0)), "host_hit on b: cached tokens were"),
        (findings(host=replace(ANSWER, token_ids=(1, 2, 4))), "host_hit on b: its tokens are not"),
        (findings(computed=replace(COMPUTED, cached_tokens=32)), "recompute: 32 tokens were cached"),
        (findings(view=replace(VIEW, workers=[])), "knows workers []"),
        (findings(view=replace(VIEW, engines_alive={"a", "b"})), "knows engines ['a'], not ['a', 'b']"),
        (findings(view=replace(VIEW, match=[])), "matches []"),
        (findings(view=replace(VIEW, last_chunk_holders=[])), "the last chunk is held by []"),
    ],
)
def test_what_did_not_hold_is_told(seen: Findings, told: str) -> None:
    problems = seen.problems()
    assert any(told in line for line in problems), problems
    assert all("\n" not in line for line in problems)


def test_a_turn_that_lost_what_was_stored_is_told() -> None:
    seen = findings()
    seen.turns.append(Turn("b", replace(ANSWER, cached_tokens=256), 512))
    assert seen.problems() == ["chat turn 2 on b: 256 tokens were cached, not 512 or more"]


def test_shared_memory_of_a_process_is_found_and_removed() -> None:
    program = (
        "import mmap, os, sys\n"
        "fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)\n"
        "os.truncate(fd, 4096)\n"
        "os.link(sys.argv[1], sys.argv[1] + '-renamed')\n"
        "os.unlink(sys.argv[1])\n"
        "held = mmap.mmap(fd, 4096)\n"
        "print('ready', flush=True)\n"
        "sys.stdin.read()\n"
    )
    path = Path(f"/dev/shm/blockyard-test-{os.getpid()}")
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        memory = SharedMemory()
        memory.note([process.pid])
        process.kill()
    renamed = path.with_name(f"{path.name}-renamed")
    assert memory.left() == [renamed]
    assert memory.remove_left() == [renamed]
    assert memory.left() == []
