"""What the tests with a real vLLM share: the tiny model, and one cluster with two servers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from support.vllm_stack import Stack


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny Llama on disk, made once a run."""
    from blockyard.cli.demo.tiny_model import cached_model

    return cached_model(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def stack(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Servers take long to start, so that all tests share them; each leaves them attached and idle."""
    from support.vllm_stack import running_stack

    with running_stack(model, tmp_path_factory.mktemp("servers")) as stack:
        yield stack


@pytest.fixture
def settled(stack: Stack) -> Stack:
    """The same with every part running, whatever ran before."""
    stack.repair()
    return stack
