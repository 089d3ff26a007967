"""Which weights an engine serves: a digest of what lies on disk, or a hub commit.

Owns the reading of weight files for identity. Must never load a tensor. A file's header alone would not tell a
retrained model of the same shapes apart, so pieces of the content are read too: all of a small file, evenly spaced
pages of a large one (one in about every 4 MiB of a 5 GB shard, so every large tensor is touched).
"""

from pathlib import Path

import xxhash

SMALL_FILE = 64 << 20
HEADER = 1 << 20
PIECES = 1024
PIECE = 4096

_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
_CONFIGS = (
    "config.json",
    "adapter_config.json",
    "model.safetensors.index.json",
    "pytorch_model.bin.index.json",
    "quantize_config.json",
)


def local_digest(folder: Path) -> str | None:
    """Hex digest of a local model's config and weight files; None when there is nothing to identify it by."""
    if folder.is_file():
        files = [folder]
    else:
        files = sorted(p for p in folder.iterdir() if p.name in _CONFIGS or p.suffix in _SUFFIXES)
    if not any(p.suffix in _SUFFIXES for p in files):
        return None
    digest = xxhash.xxh3_128()
    for path in files:
        digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
        _add_content(digest, path)
    return digest.hexdigest()


def _add_content(digest: xxhash.xxh3_128, path: Path) -> None:
    size = path.stat().st_size
    with path.open("rb") as file:
        if size <= SMALL_FILE:
            while piece := file.read(HEADER):
                digest.update(piece)
            return
        digest.update(file.read(HEADER))
        for index in range(PIECES):
            file.seek((size - PIECE) * index // (PIECES - 1))
            digest.update(file.read(PIECE))
