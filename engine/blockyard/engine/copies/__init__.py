"""Copies between an engine's device blocks and areas of the host pool, one file per device."""
