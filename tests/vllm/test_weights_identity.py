"""Which weights an engine serves is told from their content, not from their names and sizes."""

from pathlib import Path

from blockyard.engine.vllm import weights


def model_folder(path: Path, payload: bytes) -> Path:
    path.mkdir()
    (path / "config.json").write_text('{"hidden_size": 8}')
    (path / "model.safetensors").write_bytes(payload)
    return path


def test_same_content_in_two_places_is_one_model(tmp_path: Path) -> None:
    one = model_folder(tmp_path / "a", b"w" * 4096)
    two = model_folder(tmp_path / "b", b"w" * 4096)
    assert weights.local_digest(one) == weights.local_digest(two)


def test_retrained_weights_of_the_same_size_are_another_model(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "a", b"w" * 4096)
    before = weights.local_digest(folder)
    (folder / "model.safetensors").write_bytes(b"w" * 4095 + b"v")
    assert weights.local_digest(folder) != before


def test_another_config_is_another_model(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "a", b"w" * 4096)
    before = weights.local_digest(folder)
    (folder / "config.json").write_text('{"hidden_size": 9}')
    assert weights.local_digest(folder) != before


def test_a_large_file_is_sampled_at_its_end_and_inside(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "a", b"")
    path = folder / "model.safetensors"
    size = weights.SMALL_FILE + 8 * weights.HEADER
    digests = set()
    for touched in (None, size - 1, size // 2, weights.HEADER // 2):
        with path.open("wb") as file:
            file.truncate(size)
            if touched is not None:
                # A retrained tensor differs all over: one run as long as a tensor is enough to be seen.
                file.seek(max(0, touched - weights.HEADER))
                file.write(b"x" * min(weights.HEADER, size - touched + weights.HEADER))
        digests.add(weights.local_digest(folder))
    assert len(digests) == 4


def test_no_weight_file_means_no_identity(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert weights.local_digest(tmp_path) is None
