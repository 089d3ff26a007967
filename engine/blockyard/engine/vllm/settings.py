"""What an operator may write into `kv_connector_extra_config`, checked.

Owns names, ranges and defaults of the engine's settings. Must never know vLLM's objects: it reads a plain mapping.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from blockyard.common.errors import ConfigError

MAX_SOCKET_PATH = 107
"""Bytes that a Unix socket address can hold on Linux."""

OURS = {
    "socket",
    "verify_host",
    "salt",
    "chunk_tokens",
    "blocks_per_chunk",
    "acquire_wait_ms",
    "acquire_deadline_ms",
    "allow_untested",
    "offload_prompt_only",
    "harmless_calls",
}

VLLMS = {"spec_name", "spec_module_path", "self_describing_kv_events", "shutdown_timeout"}
"""Names that vLLM itself reads from the same mapping."""

Verify = Literal["off", "sample", "always"]


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Settings of one engine. Times in seconds; `blocks_per_chunk` 0 means: from `chunk_tokens`.

    `harmless_calls`: calls of a worker extension that leave the weights as they are.
    """

    socket: str = "/run/blockyard/worker.sock"
    verify_host: Verify = "always"
    salt: str = ""
    chunk_tokens: int = 256
    blocks_per_chunk: int = 0
    acquire_wait: float = 0.001
    acquire_deadline: float = 0.500
    allow_untested: bool = False
    offload_prompt_only: bool = False
    harmless_calls: tuple[str, ...] = ()


def parse(extra: Mapping[str, Any]) -> EngineSettings:
    """Settings from the connector's extra config; ConfigError with one line on anything unknown or out of range."""
    unknown = sorted(set(extra) - OURS - VLLMS - {SETUP_KEY})
    if unknown:
        raise ConfigError(
            f"kv_connector_extra_config: unknown setting {unknown[0]!r}; known are {', '.join(sorted(OURS))}"
        )
    default = EngineSettings()
    return EngineSettings(
        socket=_socket(extra, default.socket),
        verify_host=_verify(extra, default.verify_host),
        salt=_text(extra, "salt", default.salt, 256),
        chunk_tokens=_whole(extra, "chunk_tokens", default.chunk_tokens, 1, 1 << 20),
        blocks_per_chunk=_whole(extra, "blocks_per_chunk", default.blocks_per_chunk, 0, 1 << 16),
        acquire_wait=_whole(extra, "acquire_wait_ms", 1, 0, 100) / 1000,
        acquire_deadline=_whole(extra, "acquire_deadline_ms", 500, 1, 10_000) / 1000,
        allow_untested=_flag(extra, "allow_untested", default.allow_untested),
        offload_prompt_only=_flag(extra, "offload_prompt_only", default.offload_prompt_only),
        harmless_calls=_names(extra, "harmless_calls", default.harmless_calls),
    )


SETUP_KEY = "_blockyard_setup"
"""Where the connector leaves its setup for the spec that vLLM creates from the same mapping."""


def _wrong(name: str, value: object, right: str) -> ConfigError:
    return ConfigError(f"kv_connector_extra_config: {name} is {value!r}; it must be {right}")


def _whole(extra: Mapping[str, Any], name: str, default: int, low: int, high: int) -> int:
    value = extra.get(name, default)
    if type(value) is not int or not low <= value <= high:
        raise _wrong(name, value, f"a whole number from {low} to {high}")
    return value


def _flag(extra: Mapping[str, Any], name: str, default: bool) -> bool:
    value = extra.get(name, default)
    if type(value) is not bool:
        raise _wrong(name, value, "true or false")
    return value


def _text(extra: Mapping[str, Any], name: str, default: str, longest: int) -> str:
    value = extra.get(name, default)
    if not isinstance(value, str) or len(value) > longest:
        raise _wrong(name, value, f"a text of at most {longest} characters")
    return value


def _names(extra: Mapping[str, Any], name: str, default: tuple[str, ...]) -> tuple[str, ...]:
    value = extra.get(name, default)
    if not isinstance(value, (list, tuple)) or not all(isinstance(one, str) and one.isidentifier() for one in value):
        raise _wrong(name, value, "a list of names of calls")
    return tuple(value)


def _socket(extra: Mapping[str, Any], default: str) -> str:
    value = _text(extra, "socket", default, 4096)
    if not value.startswith("/") or len(value.encode()) > MAX_SOCKET_PATH:
        raise _wrong("socket", value, f"an absolute path of at most {MAX_SOCKET_PATH} bytes")
    return value


def _verify(extra: Mapping[str, Any], default: Verify) -> Verify:
    value = extra.get("verify_host", default)
    if value not in ("off", "sample", "always"):
        raise _wrong("verify_host", value, "off, sample or always")
    return cast(Verify, value)
