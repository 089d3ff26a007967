"""Copies between CUDA tensors and the pool, on a stream of their own."""

from blockyard.engine.copies.base import GroupPages


class CudaCopier:
    """DeviceCopier for tensors on one CUDA device."""

    def __init__(self, groups: list[GroupPages]) -> None: ...
