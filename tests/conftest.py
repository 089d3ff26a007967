"""What holds for every test: a quiet environment, and a stated reason where a test cannot run here."""

import importlib.util
import os
from pathlib import Path

import pytest
from hypothesis import settings

# Before any import of vLLM or a hub client, which read these once.
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")
# Settings of whoever runs the tests are not the tests' settings.
for name in [name for name in os.environ if name.startswith("BLOCKYARD_")]:
    del os.environ[name]

# No test asserts a time; a shared machine may be slow at any moment. CI draws the same examples each time.
settings.register_profile("blockyard", deadline=None, derandomize="CI" in os.environ, print_blob=True)
settings.load_profile("blockyard")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a device or an engine that this machine lacks."""
    absent = {}
    if importlib.util.find_spec("vllm") is None:
        absent["vllm"] = "vLLM is not installed"
    if not Path("/dev/nvidiactl").exists():
        absent["gpu"] = "no CUDA device"
    for item in items:
        for marker, reason in absent.items():
            if item.get_closest_marker(marker) is not None:
                item.add_marker(pytest.mark.skip(reason=reason))
