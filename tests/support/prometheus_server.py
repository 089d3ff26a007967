"""A real Prometheus over given targets, on a port of its own choice, gone at the end of the `with`."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

START_DEADLINE = 20.0

available = shutil.which("prometheus") is not None and shutil.which("promtool") is not None


@dataclass(frozen=True)
class PrometheusServer:
    """Asks a running Prometheus."""

    url: str

    def query(self, expr: str) -> list[dict[str, Any]]:
        """The series that an expression gives now; raises with Prometheus' own words if it does not parse."""
        form = urllib.parse.urlencode({"query": expr}).encode()
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/query", data=form, timeout=5) as answer:
                result: list[dict[str, Any]] = json.load(answer)["data"]["result"]
                return result
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{expr}: {error.read().decode()}") from error


@contextmanager
def prometheus_over(targets: list[str], folder: Path) -> Iterator[PrometheusServer]:
    """Start Prometheus scraping `targets` four times a second; `folder` holds its files."""
    config = folder / "prometheus.yml"
    config.write_text(
        "global: {scrape_interval: 250ms, scrape_timeout: 250ms}\n"
        f"scrape_configs: [{{job_name: test, static_configs: [{{targets: {json.dumps(targets)}}}]}}]\n"
    )
    log = folder / "prometheus.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={config}",
                f"--storage.tsdb.path={folder / 'data'}",
                "--web.listen-address=127.0.0.1:0",
            ],
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield PrometheusServer(_ready_url(process, log))
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


def _ready_url(process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + START_DEADLINE
    while time.monotonic() < deadline and process.poll() is None:
        found = re.search(r'msg="Listening on" address=(\S+)', log.read_text())
        if found and _is_ready(f"http://{found[1]}"):
            return f"http://{found[1]}"
        time.sleep(0.05)
    raise AssertionError(f"prometheus did not start: {log.read_text()[-2000:]}")


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=5):
            return True
    except urllib.error.URLError:
        return False
