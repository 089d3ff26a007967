"""The pages against the code: messages, states, refusals, invariants are told; links lead somewhere; commands parse.

Also keeps out of the repository what belongs to one machine: its paths and its package mirrors.
"""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest
import typer.main

from blockyard.cli.main import app
from blockyard.common.config.kinds import ReadableFile
from blockyard.common.config.load import ROLES
from blockyard.common.config.settings import settings_of
from blockyard.common.messages import attach, cluster, peer
from blockyard.common.messages.states import CopyState, KeyState
from blockyard.common.metrics.table import TABLE
from blockyard.worker.core import invariants
from blockyard.worker.core.chunks import TABLE as CHUNK_TABLE

ROOT = Path(__file__).parents[2]
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PROTOCOL = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
OPERATIONS = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("deploy/*.md")])

CHANNELS = {
    "### From an engine": attach.FromEngine,
    "### From the worker": attach.ToEngine,
    "### From a worker": cluster.FromWorker,
    "### From the leader": cluster.ToWorker,
    "### From who reads": peer.FromReader,
    "### From who serves": peer.ToReader,
}
MESSAGES = [(heading, kind) for heading, kinds in CHANNELS.items() for kind in kinds.__args__]
PARTS_OF_MESSAGES = [attach.GroupShape, attach.GroupGrant, attach.Run, cluster.World, cluster.Change]

PUBLIC_HOSTS = {"pypi.org", "files.pythonhosted.org", "download.pytorch.org"}
COMMON_FOLDERS = {"/", "/home", "/opt", "/srv", "/mnt", "/usr/src", "/var/lib", tempfile.gettempdir()}


def rows(page: str) -> dict[str, str]:
    """Lines of tables by what stands in backticks in their first cell."""
    return {name: line for line in page.splitlines() if line.startswith("| `") for name in names(line.split("|")[1])}


def names(text: str) -> set[str]:
    """What stands in backticks, outside of fenced blocks."""
    return set(re.findall(r"`([^`]+)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)))


def section(page: str, heading: str) -> str:
    """From a heading to the next one of the same rank or a higher one."""
    rank = heading.split(" ")[0]
    _, _, rest = page.partition(f"{heading}\n")
    assert rest, heading
    return re.split(rf"^#{{1,{len(rank)}}} ", rest, maxsplit=1, flags=re.MULTILINE)[0]


def label_values(metric: str) -> set[str]:
    return {value for label in TABLE[metric].labels for value in label.values}


# Protocol.


@pytest.mark.parametrize(("heading", "kind"), MESSAGES)
def test_a_message_has_a_row_with_all_its_fields(heading: str, kind: type[msgspec.Struct]) -> None:
    row = rows(section(PROTOCOL, heading))[str(kind.__struct_config__.tag)]
    told = re.findall(r"`([^`]+)`", row)
    fields = list(kind.__struct_fields__)
    assert told[1 : 1 + len(fields)] == fields, "in the order in which they travel"


@pytest.mark.parametrize("kind", PARTS_OF_MESSAGES, ids=lambda kind: kind.__name__)
def test_a_part_of_a_message_has_its_fields_told(kind: type[msgspec.Struct]) -> None:
    assert set(kind.__struct_fields__) <= names(PROTOCOL)


def test_no_row_tells_of_a_message_that_is_gone() -> None:
    for heading, kinds in CHANNELS.items():
        assert set(rows(section(PROTOCOL, heading))) == {kind.__struct_config__.tag for kind in kinds.__args__}


def test_every_state_is_told() -> None:
    assert set(rows(section(PROTOCOL, "### Key states"))) == {state.label for state in KeyState}
    assert set(rows(section(PROTOCOL, "### Copy states"))) == {state.label for state in CopyState}
    assert set(rows(section(PROTOCOL, "### Fetch states"))) == {state.label for state in peer.FetchState}


def test_every_refusal_is_told() -> None:
    of_engines = label_values("blockyard_worker_attaches_refused_total")
    of_handshakes = label_values("blockyard_worker_handshakes_refused_total")
    assert set(rows(section(PROTOCOL, "### Refusals of an engine"))) == of_engines | of_handshakes
    sources = [ROOT / "leader/blockyard/leader" / name for name in ("core/admission.py", "worker_links.py")]
    text = "".join(source.read_text(encoding="utf-8") for source in sources)
    of_workers = set(re.findall(r"(?:LinkRefused|_turn_away)\(\s*\"([a-z-]+)\"", text))
    assert set(rows(section(PROTOCOL, "### Refusals of a worker"))) == of_workers
    # Who gets no further than its connection is counted, and told nothing.
    assert label_values("blockyard_leader_links_refused_total") == of_workers | {"tls", "crowded"}
    of_peers = label_values("blockyard_worker_peer_links_refused_total")
    assert set(rows(section(PROTOCOL, "### Refusals of a peer"))) == of_peers


def test_every_reason_to_refuse_a_frame_is_told() -> None:
    told = names(section(PROTOCOL, "## Frames"))
    for metric in ("blockyard_worker_frames_refused_total", "blockyard_leader_frames_refused_total"):
        assert label_values(metric) <= told


def test_the_example_makes_the_keys_that_engines_make(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("cbor2", reason="comes with vLLM")
    told = section(PROTOCOL, "## Keys")
    (code,) = re.findall(r"^```python\n(.*?)^```", told, re.MULTILINE | re.DOTALL)
    (printed,) = re.findall(r"^```text\n(.*?)^```", told, re.MULTILINE | re.DOTALL)
    example: dict[str, Any] = {}
    exec(compile(code, "docs/protocol.md", "exec"), example)
    assert ast.literal_eval(capsys.readouterr().out) == ast.literal_eval(printed)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONHASHSEED", raising=False)
        keys = importlib.import_module("blockyard.cli.demo.block_names").chunk_keys(
            example["world"], range(600), block_size=32, blocks_per_chunk=8
        )
    assert [key.hex() for key in keys] == ast.literal_eval(printed)


# Architecture and operations.


def test_the_table_of_states_is_the_codes() -> None:
    for (state, event), targets in CHUNK_TABLE.items():
        free, used = ("not allowed" if target is None else target.name for target in targets)
        assert f"| {state.name} | {event.name} | {free} | {used} |" in ARCHITECTURE
    assert section(ARCHITECTURE, "## Life of a chunk").count("\n| ") == len(CHUNK_TABLE) + 1


def test_every_check_of_an_invariant_is_told() -> None:
    leaders = (ROOT / "leader/blockyard/leader/core/invariants.py").read_text(encoding="utf-8")
    checks = {*invariants.CHECKS, *re.findall(r"_require\(\s*\"([a-z-]+)\"", leaders)}
    told = section(ARCHITECTURE, "## Invariants")
    assert {name for name in checks if name not in told} == set()


def test_tests_that_pages_name_exist() -> None:
    for page in PAGES:
        for file, test in re.findall(r"(tests/[\w/]+\.py)(?:::(\w+))?", page.read_text(encoding="utf-8")):
            tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
            functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
            assert not test or test in functions, f"{page.name}: {file}::{test}"


def test_every_reason_to_be_detached_is_told() -> None:
    assert label_values("blockyard_engine_detaches_total") <= set(rows(OPERATIONS))


def test_metrics_that_pages_name_exist() -> None:
    for page in PAGES:
        for name in re.findall(r"blockyard_(?:worker|leader|engine)_\w+", page.read_text(encoding="utf-8")):
            assert name in TABLE, f"{page.name}: {name}"


def test_the_readme_shows_every_setting_of_the_connector() -> None:
    source = (ROOT / "engine/blockyard/engine/vllm/settings.py").read_text(encoding="utf-8")
    (ours,) = re.findall(r"^OURS = (\{.*?\})", source, re.MULTILINE | re.DOTALL)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert set(rows(readme)) >= ast.literal_eval(ours)
    examples = re.findall(r"--kv-transfer-config '(.*?)'", readme, re.DOTALL)
    assert examples
    for given in examples:
        assert set(json.loads(given)["kv_connector_extra_config"]) <= ast.literal_eval(ours)


# Links and commands.


def links() -> Iterator[Any]:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
            if not urlsplit(target).scheme:
                yield pytest.param(page, target, id=f"{page.relative_to(ROOT)}:{target}")


@pytest.mark.parametrize(("page", "target"), [*links()])
def test_a_relative_link_leads_somewhere(page: Path, target: str) -> None:
    path, _, anchor = target.partition("#")
    linked = page if not path else page.parent / path
    assert linked.exists()
    if anchor:
        headings = re.findall(r"^#+ (.*)$", linked.read_text(encoding="utf-8"), re.MULTILINE)
        assert anchor in {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def commands() -> Iterator[Any]:
    """`blockyard …` lines in fenced and indented blocks, continued lines joined."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        blocks += re.findall(r"(?:^    .*\n)+", text, re.MULTILINE)
        for block in blocks:
            for line in block.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True) if "blockyard " in line else []
                if words and words[0] == "blockyard":
                    yield pytest.param(words[1:], id=f"{page.relative_to(ROOT)}: {' '.join(words)[:60]}")


@pytest.mark.parametrize("words", [*commands()])
def test_a_command_is_one_that_the_program_takes(words: list[str]) -> None:
    # typer may bring a click of its own, so groups are known by what they can do.
    command: Any = typer.main.get_command(app)
    name = "blockyard"
    while hasattr(command, "resolve_command"):
        context = command.make_context(name, [], resilient_parsing=True)
        name, command, words = command.resolve_command(context, words)
    given = command.make_context(name, list(words)).params
    role = ROLES.get(name)
    for setting in settings_of(role) if role else ():
        value = given.get(setting.name)
        if isinstance(value, str) and not isinstance(setting.kind, ReadableFile):
            setting.kind.parse(value)


# What belongs to one machine.


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, timeout=30, check=False)
    if listed.returncode:
        pytest.skip("this is no git checkout")
    files = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    return [file for file in files if file.is_file() and not file.is_symlink()]


def told_to_pip() -> str:
    """Where this machine is told to take packages from, as text."""
    told = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, timeout=60, check=False
    ).stdout
    return told + " ".join(value for name, value in os.environ.items() if name.startswith(("PIP_", "UV_")))


def mirrors(told: str) -> set[str]:
    """Hosts of package indexes, but for those everybody uses."""
    hosts = {urlsplit(url).hostname for url in re.findall(r"https?://[^\s'\",]+", told)}
    return {host for host in hosts if host and "." in host and host not in PUBLIC_HOSTS}


def test_nothing_of_this_machine_is_in_the_repository() -> None:
    told = told_to_pip()
    folders = {str(ROOT), str(ROOT.parent), str(Path.home()), *re.findall(r"file://(/[^\s',]+)", told)}
    patterns = [rf"(?<![\w.-]){re.escape(folder)}/" for folder in folders - COMMON_FOLDERS]
    patterns += [re.escape(host) for host in mirrors(told)]
    private = re.compile("|".join(sorted(patterns)).encode())
    found = [str(file.relative_to(ROOT)) for file in tracked() if private.search(file.read_bytes())]
    assert found == []
