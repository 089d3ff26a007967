"""Who may import whom: read from the source, tried in fresh interpreters, and the reader put to the test."""

import subprocess
import sys
from pathlib import Path

import pytest

from support.import_rules import PARTS, read_modules, violations

ROOT = Path(__file__).parents[2]

IMPORT_ALL = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
print(*sys.modules)
"""


def test_no_module_imports_what_its_part_must_not_know() -> None:
    assert violations(ROOT) == []


@pytest.mark.parametrize("part", ["common", "leader", "worker", "cli"])
def test_importing_a_part_loads_no_tensor_library_and_no_other_part(part: str) -> None:
    names = [
        name
        for name, module in read_modules(ROOT).items()
        if module.part == part and not name.startswith("blockyard.cli.demo")
    ]
    if not names:
        pytest.skip(f"{part} has no module yet")
    result = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, *names],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        cwd="/",
    )
    assert result.returncode == 0, result.stderr
    loaded = set(result.stdout.split())
    foreign = {f"blockyard.{other}" for other in PARTS if other not in ("common", part)} | {
        "torch",
        "vllm",
        "numpy",
    }
    assert loaded & foreign == set()


def write(root: Path, name: str, source: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)


BREACHES = [
    ("worker/blockyard/worker/pool.py", "import torch", "blockyard.worker.pool must not import torch"),
    ("worker/blockyard/worker/pool.py", "def f():\n    import torch.cuda", "must not import torch.cuda"),
    ("worker/blockyard/worker/pool.py", "from blockyard import leader", "must not import blockyard.leader"),
    (
        "leader/blockyard/leader/main.py",
        "from blockyard.worker.pool import Pool",
        "must not import blockyard.worker",
    ),
    (
        "leader/blockyard/leader/main.py",
        "import importlib\nimportlib.import_module('vllm')",
        "must not import vllm",
    ),
    (
        "common/blockyard/common/link.py",
        "import blockyard.engine.session",
        "must not import blockyard.engine",
    ),
    (
        "engine/blockyard/engine/session.py",
        "from blockyard.common import etcd",
        "import blockyard.common.etcd",
    ),
    ("engine/blockyard/engine/session.py", "import grpc.aio", "must not import grpc.aio"),
    ("engine/blockyard/engine/session.py", "import torch", "must not import torch"),
    ("engine/blockyard/engine/copies/cpu.py", "import vllm", "must not import vllm"),
    ("engine/blockyard/engine/vllm/spec.py", "from blockyard.leader import main", "import blockyard.leader"),
    (
        "cli/blockyard/cli/main.py",
        "import blockyard.cli.demo.main",
        "must not import blockyard.cli.demo.main",
    ),
    (
        "cli/blockyard/cli/main.py",
        "from blockyard.worker.main import run",
        "must not import blockyard.worker.main",
    ),
    ("worker/blockyard/worker/core/worker.py", "import time", "imports impure time"),
    ("worker/blockyard/worker/core/worker.py", "from random import random", "imports impure random"),
    ("worker/blockyard/worker/core/worker.py", "import xxhash", "imports foreign xxhash"),
    ("worker/blockyard/worker/core/worker.py", "async def f():\n    pass", "is a core and waits"),
    ("worker/blockyard/worker/core/worker.py", "print(1)", "is a core and calls print()"),
    ("leader/blockyard/__init__.py", "", "is a namespace and has no __init__.py"),
]


@pytest.mark.parametrize(("name", "source", "told"), BREACHES)
def test_the_reader_finds(tmp_path: Path, name: str, source: str, told: str) -> None:
    write(tmp_path, name, source)
    found = violations(tmp_path)
    assert found
    assert all(told in line for line in found[-1:])


def test_the_reader_follows_a_core_through_other_modules(tmp_path: Path) -> None:
    write(tmp_path, "common/blockyard/common/net/__init__.py", "import socket")
    write(tmp_path, "common/blockyard/common/net/names.py", "NAME = 1")
    write(tmp_path, "leader/blockyard/leader/core/book.py", "from ...leader.core import page")
    write(tmp_path, "leader/blockyard/leader/core/page.py", "from blockyard.common.net.names import NAME")
    found = violations(tmp_path)
    chain = "blockyard.leader.core.book -> blockyard.leader.core.page -> blockyard.common.net"
    assert any(f"{chain} imports impure socket" in line for line in found)


ALLOWED = [
    ("worker/blockyard/worker/core/worker.py", "from dataclasses import dataclass\nfrom .slots import Slots"),
    ("worker/blockyard/worker/core/worker.py", "from blockyard.common.identity import Key\nimport msgspec"),
    ("worker/blockyard/worker/main.py", "import asyncio\nfrom blockyard.common.etcd import Client"),
    ("engine/blockyard/engine/vllm/spec.py", "import torch, vllm"),
    ("engine/blockyard/engine/copies/cpu.py", "import torch"),
    ("cli/blockyard/cli/main.py", "def f():\n    from blockyard.worker.main import run"),
    ("cli/blockyard/cli/demo/model.py", "import torch"),
]


@pytest.mark.parametrize(("name", "source"), ALLOWED)
def test_the_reader_lets_pass(tmp_path: Path, name: str, source: str) -> None:
    write(tmp_path, name, source)
    assert violations(tmp_path) == []
