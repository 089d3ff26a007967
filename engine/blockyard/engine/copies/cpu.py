"""Copies between torch tensors in host memory and the pool."""

from blockyard.engine.copies.base import GroupPages


class CpuCopier:
    """DeviceCopier for tensors on the CPU."""

    def __init__(self, groups: list[GroupPages]) -> None: ...
