"""What a chunk's key is made of: equal requests share every key, and anything that changes the bytes parts them."""

from __future__ import annotations

import itertools
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

import torch
from safetensors.torch import save_file
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.utils.hashing import sha256_cbor
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_offload.base import make_offload_key
from vllm.v1.request import Request

from blockyard.common.identity import Key
from blockyard.engine.vllm import adapters
from blockyard.engine.vllm.adapters import AdapterBook
from blockyard.engine.vllm.chains import Chain
from blockyard.engine.vllm.groups import CacheGroup
from blockyard.engine.vllm.lookups import RequestState
from vllm import SamplingParams

BLOCK = 16
TOKENS = list(range(100, 100 + 8 * BLOCK))
WORLD = b"w" * 32
NUMBERS = itertools.count()


class Blocks:
    """vLLM's lists for one group of one request."""

    def __init__(self, keys: list[Any]) -> None:
        self.offload_keys = keys
        self.block_ids: list[int] = []
        self.next_stored_chunk_idx = 0


def keys_of(book: AdapterBook, *, world: bytes = WORLD, group: int = 0, **request: Any) -> list[Key]:
    """Keys of all chunks of a request, two blocks each, as the scheduler side makes them from vLLM's hashes."""
    init_none_hash(sha256_cbor)
    made = Request(
        request_id=f"request-{next(NUMBERS)}",
        prompt_token_ids=request.pop("tokens", TOKENS),
        sampling_params=SamplingParams(max_tokens=1),
        pooling_params=None,
        block_hasher=get_request_block_hasher(BLOCK, sha256_cbor),
        **request,
    )
    mine = world if made.lora_request is None else book.world(world, made.lora_request)
    assert mine is not None
    chain = Chain(CacheGroup(group, BLOCK, 2), Blocks([make_offload_key(h, group) for h in made.block_hashes[1::2]]))
    state = RequestState(mine, (chain,))
    return [state.key_of(chain, key) for key in chain.keys]


def adapter(folder: Path, seed: int = 1, alpha: int = 16) -> Path:
    """An adapter's files, older than any engine of this test."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    save_file({"lora_A": torch.randn(4, 8)}, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(f'{{"lora_alpha": {alpha}}}')
    return folder


def lora(path: Path, name: str = "sql", number: int = 1) -> LoRARequest:
    return LoRARequest(name, number, str(path))


def image(identifier: str, offset: int = 20) -> dict[str, Any]:
    place = PlaceholderRange(offset=offset, length=8)
    return {"mm_features": [MultiModalFeatureSpec(None, "image", identifier, place)]}


@pytest.fixture
def book(monkeypatch: pytest.MonkeyPatch) -> AdapterBook:
    """Of an engine that starts a while after all files of the test were written."""
    now = adapters.time.time() + 60
    monkeypatch.setattr(adapters.time, "time", lambda: now)
    return AdapterBook("engine:1")


def other_book(name: str = "engine:2") -> AdapterBook:
    return AdapterBook(name)


@pytest.mark.parametrize("request_", [{}, {"cache_salt": "tenant"}, image("cat")], ids=["plain", "salt", "image"])
def test_equal_requests_share_every_key_on_any_engine(book: AdapterBook, request_: dict[str, Any]) -> None:
    keys = keys_of(book, **request_)
    assert len(keys) == len(set(keys)) == 4
    assert keys == keys_of(other_book(), **request_)


@pytest.mark.parametrize(
    "changed",
    [
        {"tokens": [99, *TOKENS[1:]]},
        {"cache_salt": "other"},
        {"cache_salt": None},
        {"world": b"v" * 32},
        {"group": 1},
    ],
    ids=["first-token", "other-salt", "no-salt", "world", "group"],
)
def test_what_differs_from_the_start_shares_no_key(book: AdapterBook, changed: dict[str, Any]) -> None:
    plain: dict[str, Any] = {"cache_salt": "tenant"}
    assert not set(keys_of(book, **plain)) & set(keys_of(book, **(plain | changed)))


@pytest.mark.parametrize("changed", [image("dog"), image("cat", offset=24), {}], ids=["other", "moved", "none"])
def test_another_image_shares_what_comes_before_it_and_nothing_after(
    book: AdapterBook, changed: dict[str, Any]
) -> None:
    late = {"mm_features": image("cat", 70)["mm_features"]}
    keys = keys_of(book, **late)
    other = dict(changed)
    if other:
        other["mm_features"][0].mm_position = PlaceholderRange(offset=70 if "dog" in str(other) else 72, length=8)
    differing = keys_of(book, **other)
    assert keys[:2] == differing[:2]
    assert not set(keys[2:]) & set(differing[2:])


def test_an_adapter_shares_nothing_with_the_plain_model_or_another_adapter(book: AdapterBook, tmp_path: Path) -> None:
    one, two = adapter(tmp_path / "one", 1), adapter(tmp_path / "two", 2)
    keys = keys_of(book, lora_request=lora(one))
    assert not set(keys) & set(keys_of(book))
    assert not set(keys) & set(keys_of(book, lora_request=lora(two, number=2)))


def test_the_same_adapter_is_shared_by_engines_that_have_it_at_the_same_place(
    book: AdapterBook, tmp_path: Path
) -> None:
    path = adapter(tmp_path / "sql")
    assert keys_of(book, lora_request=lora(path)) == keys_of(other_book(), lora_request=lora(path, number=7))


@pytest.mark.parametrize("changed", [{"seed": 2}, {"alpha": 32}], ids=["weights", "config"])
def test_an_adapter_of_the_same_name_and_place_with_other_files_shares_nothing(
    book: AdapterBook, tmp_path: Path, changed: dict[str, int]
) -> None:
    path = adapter(tmp_path / "sql")
    before = keys_of(book, lora_request=lora(path))
    shutil.rmtree(path)
    adapter(path, **changed)
    assert not set(before) & set(keys_of(other_book(), lora_request=lora(path)))


def test_an_adapter_whose_files_change_under_a_running_engine_takes_no_part(
    book: AdapterBook, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = adapter(tmp_path / "sql")
    assert book.world(WORLD, lora(path)) is not None
    adapter(path, seed=2)
    assert book.world(WORLD, lora(path)) is None
    assert "its files have changed" in caplog.text
    adapter(path, seed=1)
    assert book.world(WORLD, lora(path)) is None, "nobody knows which of them vLLM has read"


def test_a_link_that_points_elsewhere_counts_as_a_change(book: AdapterBook, tmp_path: Path) -> None:
    one, two, link = adapter(tmp_path / "one", 1), adapter(tmp_path / "two", 2), tmp_path / "current"
    link.symlink_to(one)
    assert book.world(WORLD, lora(link)) is not None
    os.replace(_link_to(two, tmp_path / "next"), link)
    assert book.world(WORLD, lora(link)) is None


def _link_to(target: Path, link: Path) -> Path:
    link.symlink_to(target)
    return link


def test_files_newer_than_the_engine_are_this_engines_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one, two = AdapterBook("engine:1"), AdapterBook("engine:2")
    path = adapter(tmp_path / "sql")
    assert one.world(WORLD, lora(path)) == one.world(WORLD, lora(path))
    assert one.world(WORLD, lora(path)) != two.world(WORLD, lora(path))
    assert "newer than the engine" in caplog.text


def test_an_adapter_that_is_no_folder_here_is_this_engines_alone(
    book: AdapterBook, caplog: pytest.LogCaptureFixture
) -> None:
    hub = lora(Path("someone/their-adapter"))
    assert book.world(WORLD, hub) not in (None, other_book().world(WORLD, hub))
    assert "no folder with weights" in caplog.text
