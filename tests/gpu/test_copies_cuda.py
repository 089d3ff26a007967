"""The CUDA copier: every geometry bit-exact, copies wait for the engine's stream, the pool is registered and let go."""

import mmap
import os
from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

from blockyard.engine.copies.base import GroupPages, LayoutRefused, PagedTensor  # noqa: E402
from blockyard.engine.copies.cuda import CudaCopier  # noqa: E402
from blockyard.engine.jobs import BlockRange  # noqa: E402

pytestmark = pytest.mark.gpu

POOL_BYTES = 16 << 20
OFFSET = 8192
GEOMETRIES = {
    "even": [(16384, None), (16384, None)],
    "odd": [(7, None), (13, None), (16, None)],
    "rows wider than pages": [(64, 96), (48, 50), (5, 8)],
}


@pytest.fixture
def pool() -> Iterator[memoryview]:
    descriptor = os.memfd_create("cuda-test")
    os.ftruncate(descriptor, POOL_BYTES)
    mapped = mmap.mmap(descriptor, POOL_BYTES)
    os.close(descriptor)
    view = memoryview(mapped)
    yield view
    view.release()
    mapped.close()


def tensors_of(name: str) -> list[PagedTensor]:
    return [
        PagedTensor(torch.randint(-128, 128, (64, row or page), dtype=torch.int8, device="cuda"), page)
        for page, row in GEOMETRIES[name]
    ]


@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.parametrize("block_ids", [[9, 2, 11, 5], [4, 5, 6, 7]], ids=["scattered", "neighbours"])
def test_store_then_load_elsewhere(pool: memoryview, name: str, block_ids: list[int]) -> None:
    tensors = tensors_of(name)
    copier = CudaCopier([GroupPages(0, tensors, 4)])
    copier.bind(pool)
    copier.begin(copier.fence())
    copied = copier.store(BlockRange(block_ids), OFFSET)
    copier.finish()
    expected = b"".join(
        bytes(paged.tensor[block, : paged.page_bytes].cpu().numpy()) for paged in tensors for block in block_ids
    )
    assert copied == copier.area_bytes(0) == len(expected)
    assert bytes(pool[OFFSET : OFFSET + copied]) == expected

    before = [paged.tensor.cpu() for paged in tensors]
    copier.begin(copier.fence())
    copier.load(OFFSET, BlockRange([20, 29, 22], first_page=1))
    copier.finish()
    for paged, was in zip(tensors, before, strict=True):
        now = paged.tensor.cpu()
        size = paged.page_bytes
        for target, source in zip([20, 29, 22], block_ids[1:], strict=True):
            assert torch.equal(now[target, :size], was[source, :size])
            was[target, :size] = was[source, :size]
        assert torch.equal(now, was), "nothing else was touched"
    copier.unbind()


def test_a_store_waits_for_the_engines_stream(pool: memoryview) -> None:
    tensors = tensors_of("even")
    copier = CudaCopier([GroupPages(0, tensors, 4)])
    copier.bind(pool)
    torch.cuda._sleep(200_000_000)
    for paged in tensors:
        paged.tensor.fill_(42)
    copier.begin(copier.fence())
    copied = copier.store(BlockRange([0, 1, 2, 3]), 0)
    copier.finish()
    assert set(pool[:copied]) == {42}
    copier.unbind()


def fill(tensors: list[PagedTensor], value: int) -> None:
    for paged in tensors:
        paged.tensor.fill_(value)


def check_round_trip(copier: CudaCopier, tensors: list[PagedTensor], pool: memoryview, value: int) -> None:
    """Store blocks full of `value`, look at the pool's bytes, lose the blocks, load them, look at the blocks."""
    fill(tensors, value)
    copier.begin(copier.fence())
    copied = copier.store(BlockRange([3, 1, 0, 2]), OFFSET)
    copier.finish()
    assert bytes(pool[OFFSET : OFFSET + copied]) == bytes([value]) * copied
    assert pool[OFFSET - 1] == pool[OFFSET + copied] == 0, "nothing else was touched"
    fill(tensors, 0)
    copier.begin(copier.fence())
    assert copier.load(OFFSET, BlockRange([0, 1, 2, 3])) == copied
    copier.finish()
    for paged in tensors:
        assert bool((paged.tensor[:4] == value).all()), "the loaded blocks are what was stored"
        assert not bool(paged.tensor[4:].any()), "no other block was touched"


def test_a_pool_can_be_bound_again_and_again(pool: memoryview) -> None:
    tensors = tensors_of("even")
    copier = CudaCopier([GroupPages(0, tensors, 4)])
    for value in (11, 22, 33):
        copier.bind(pool)
        check_round_trip(copier, tensors, pool, value)
        copier.unbind()


def test_copies_are_right_before_and_after_the_registration(pool: memoryview) -> None:
    tensors = tensors_of("even")
    copier = CudaCopier([GroupPages(0, tensors, 4)])
    copier.bind(pool)
    check_round_trip(copier, tensors, pool, 44)
    registration = copier._registration
    assert registration is not None
    # It follows whoever owns the memory, so every page has to be there first.
    for start in range(0, POOL_BYTES, 4096):
        pool[start] = pool[start]
    registration._thread.join(60)
    if not registration._registered:
        pytest.skip("this machine does not register host memory with CUDA")
    assert torch.frombuffer(pool, dtype=torch.int8).is_pinned()
    check_round_trip(copier, tensors, pool, 55)
    copier.unbind()
    assert not torch.frombuffer(pool, dtype=torch.int8).is_pinned()


@pytest.mark.parametrize("block_ids", [[0, 64], [-1, 0]])
def test_blocks_that_do_not_exist_are_refused_before_the_device_sees_them(
    pool: memoryview, block_ids: list[int]
) -> None:
    """An index out of range in a kernel would end every use of the device by this process."""
    tensors = tensors_of("even")
    copier = CudaCopier([GroupPages(0, tensors, 4)])
    copier.bind(pool)
    copier.begin(copier.fence())
    with pytest.raises(LayoutRefused):
        copier.store(BlockRange(block_ids), OFFSET)
    with pytest.raises(LayoutRefused):
        copier.load(OFFSET, BlockRange(block_ids))
    check_round_trip(copier, tensors, pool, 66)
    copier.unbind()


def test_tensors_on_the_cpu_are_refused() -> None:
    with pytest.raises(LayoutRefused):
        CudaCopier([GroupPages(0, [PagedTensor(torch.zeros((4, 64), dtype=torch.int8), 64)], 2)])
