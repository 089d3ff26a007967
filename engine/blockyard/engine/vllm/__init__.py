"""Blockyard inside vLLM: name this package in `kv_connector_module_path` and `BlockyardConnector` in `kv_connector`."""

from typing import Any

__all__ = ["BlockyardConnector"]


def _connector() -> Any:
    """Ours, or one that stays out: a vLLM without the parts that ours is made of must start and serve all the same."""
    try:
        from blockyard.engine.vllm.connector import BlockyardConnector
    except ImportError as error:
        from blockyard.engine.vllm.bystander import stand_by

        return stand_by(f"version: {error}")
    return BlockyardConnector


BlockyardConnector = _connector()
