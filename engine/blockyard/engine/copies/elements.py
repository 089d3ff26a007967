"""How wide an element a page may be copied in. Owns the choice; the wider, the fewer moves."""

from typing import Any

import torch

from blockyard.engine.copies.base import PagedTensor

ELEMENTS = ((16, torch.complex128), (8, torch.int64), (2, torch.int16), (1, torch.int8))
"""Element widths in bytes and the types that stand for them; only moved, never computed with."""


def widest(paged: PagedTensor, start: int) -> tuple[int, Any]:
    """The widest element that divides the page, the rows' distance and the places (`start` in the area)."""
    tensor = paged.tensor
    sizes = (paged.page_bytes, tensor.stride(0), tensor.storage_offset(), tensor.data_ptr(), start)
    return next((width, element) for width, element in ELEMENTS if all(size % width == 0 for size in sizes))
