"""What the tests with a real vLLM share: the tiny model."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny Llama on disk, made once a run."""
    from blockyard.cli.demo.tiny_model import cached_model

    return cached_model(tmp_path_factory.mktemp("models"))
