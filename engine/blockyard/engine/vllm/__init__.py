"""Blockyard inside vLLM: name this package in `kv_connector_module_path` and `BlockyardConnector` in `kv_connector`."""

from blockyard.engine.vllm.connector import BlockyardConnector

__all__ = ["BlockyardConnector"]
