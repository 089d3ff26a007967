"""`blockyard demo-light` from outside: it succeeds, leaves nothing, and fails when a byte is wrong."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from blockyard.cli import demo_light
from blockyard.cli.demo import process_table
from blockyard.cli.demo.light_cluster import EngineProcess

COMMAND = [sys.executable, "-m", "blockyard.cli.main", "demo-light"]


def short_folder(tmp_path: Path) -> Path:
    """Where the demo's files go; its sockets need a short path."""
    folder = Path("/tmp") / f"dl-{tmp_path.parent.name[-4:]}-{tmp_path.name[-12:]}"
    folder.mkdir()
    return folder


def test_it_succeeds_and_leaves_nothing(tmp_path: Path) -> None:
    folder = short_folder(tmp_path)
    result = subprocess.run(COMMAND, env=_environment(folder), capture_output=True, text=True, timeout=100, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "bit-exact" in result.stdout
    assert list(folder.iterdir()) == []
    assert process_table.marked(f"TMPDIR={folder}") == []
    folder.rmdir()


def test_a_wrong_byte_fails_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    honest = EngineProcess.command

    def lying(engine: EngineProcess, do: str, **values: object) -> dict[str, Any]:
        answer = honest(engine, do, **values)
        return answer | {"wrong": 1} if do == "load" else answer

    monkeypatch.setattr(EngineProcess, "command", lying)
    assert demo_light.run() == 1
    assert "chunks with wrong bytes: found 1, right is 0" in " ".join(capsys.readouterr().out.split())


def test_a_folder_too_deep_for_a_socket_is_one_clear_line(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    result = subprocess.run(COMMAND, env=_environment(folder), capture_output=True, text=True, timeout=100, check=False)
    assert result.returncode == 2
    assert result.stderr.startswith("blockyard: ") and "TMPDIR" in result.stderr
    assert result.stderr.count("\n") == 1


def _environment(folder: Path) -> dict[str, str]:
    return os.environ | {"TMPDIR": str(folder)}
