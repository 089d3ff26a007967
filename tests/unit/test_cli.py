"""The `blockyard` command as a person meets it: real processes, their output and exit codes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from blockyard.common.config import LeaderConfig, WorkerConfig
from blockyard.common.config.settings import settings_of


def blockyard(*args: str, **variables: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("BLOCKYARD_")}
    return subprocess.run(
        [sys.executable, "-m", "blockyard.cli.main", *args],
        env={**clean, "COLUMNS": "200", "NO_COLOR": "1", **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("asked", ["version", "--version"])
def test_version(asked: str) -> None:
    result = blockyard(asked)
    assert result.returncode == 0
    assert result.stdout.startswith("blockyard ")


def test_help_names_every_command() -> None:
    result = blockyard("--help")
    assert result.returncode == 0
    for command in (
        "leader",
        "worker",
        "config",
        "drain",
        "purge",
        "prefetch",
        "fsck",
        "demo",
        "demo-light",
        "version",
    ):
        assert command in result.stdout


@pytest.mark.parametrize("command", ["demo", "demo-light"])
def test_a_demo_tells_its_help_and_starts_nothing(command: str) -> None:
    result = blockyard(command, "--help")
    assert result.returncode == 0
    assert f" {command} " in result.stdout


@pytest.mark.parametrize(("role", "config"), [("worker", WorkerConfig), ("leader", LeaderConfig)])
def test_help_of_a_role_names_every_setting_with_its_default(role: str, config: type) -> None:
    shown = blockyard(role, "--help").stdout
    for setting in settings_of(config):
        assert setting.flag in shown
        assert setting.default_text == "-" or f"[default: {setting.default_text}]" in shown
        assert setting.group in shown


@pytest.mark.parametrize(
    ("args", "variables", "told"),
    [
        (["worker", "--host-pool", "abc"], {}, "host_pool = 'abc' (flag --host-pool): must be a size"),
        (
            ["worker", "--slab-size=2GiB"],
            {},
            "slab_size = 2GiB (flag --slab-size): must not be larger than host_pool",
        ),
        (
            ["worker"],
            {"BLOCKYARD_WORKER_PIN_TTL": "3"},
            "pin_ttl = '3' (variable BLOCKYARD_WORKER_PIN_TTL): must be a",
        ),
        (
            ["worker"],
            {"BLOCKYARD_WORKER_PINTTL": "3s"},
            "BLOCKYARD_WORKER_PINTTL (environment): no such setting",
        ),
        (["leader"], {}, "etcd (not set): must be set for a leader"),
        (["leader", "--config", "/no/such"], {}, "config = /no/such: cannot be read"),
        (
            ["leader", "--etcd", "10.0.0.1:2379"],
            {},
            "etcd = 10.0.0.1:2379 (flag --etcd): 10.0.0.1:2379 is another",
        ),
        (["config", "explain", "--config", "/no/such"], {}, "config = /no/such: cannot be read"),
    ],
)
def test_a_wrong_setting_is_one_line_and_exit_code_2(args: list[str], variables: dict[str, str], told: str) -> None:
    result = blockyard(*args, **variables)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith(f"blockyard: {told}")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["wroker"], "No such command 'wroker'. Did you mean 'worker'?; see blockyard --help"),
        (["worker", "--host-pol", "1GiB"], "No such option: --host-pol (Possible options: --host-pool); see"),
        (["worker", "--host-pool"], "Option '--host-pool' requires an argument; see blockyard"),
        (["worker", "--prefault=maybe"], "Option '--prefault' does not take a value; see blockyard"),
        (["leader", "extra"], "Got unexpected extra argument(s) (extra); see blockyard leader --help"),
        (["config", "explain", "nobody"], "Invalid value for 'role': "),
    ],
)
def test_a_wrong_use_of_the_command_is_one_line_and_exit_code_2(args: list[str], told: str) -> None:
    result = blockyard(*args)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(f"blockyard: {told}")
    assert result.stderr.count("\n") == 1


def test_without_arguments_the_help_is_shown() -> None:
    result = blockyard()
    assert "demo-light" in result.stdout + result.stderr


def test_explain_shows_value_and_source(tmp_path: Path) -> None:
    file = tmp_path / "b.toml"
    file.write_text('[common]\ncluster = "blue"\n[worker]\nmetrics_listen = "[::1]:9000"\n')
    result = blockyard(
        "config", "explain", "worker", "--json", "--config", str(file), BLOCKYARD_WORKER_HOST_POOL="64MiB"
    )
    assert result.returncode == 0
    shown = {item["name"]: item for item in json.loads(result.stdout)["worker"]["settings"]}
    assert list(shown) == [setting.name for setting in settings_of(WorkerConfig)]
    assert (shown["cluster"]["value"], shown["cluster"]["source"]) == ("blue", f"[common] of {file}")
    assert shown["host_pool"]["value"] == "64MiB"
    assert shown["host_pool"]["source"] == "variable BLOCKYARD_WORKER_HOST_POOL"
    assert shown["slab_size"]["source"] == "default"
    assert all(item["expected"] and item["meaning"] and item["unit"] for item in shown.values())

    table = blockyard("config", "explain", "worker", "--config", str(file))
    assert "[::1]:9000" in table.stdout
    assert "[worker]" in table.stdout


def test_explain_says_what_would_not_start() -> None:
    result = blockyard("config", "explain", "leader")
    assert result.returncode == 2
    assert "max_workers" in result.stdout
    assert result.stderr.startswith("blockyard: a leader would not start: etcd (not set): must be set")
    described = json.loads(blockyard("config", "explain", "--json").stdout)
    assert described["worker"]["problem"] is None
    assert "etcd" in described["leader"]["problem"]
