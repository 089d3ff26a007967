"""Rolling digests: whatever differs shows, in the bucket where it is, and what is undone leaves no trace."""

import hashlib
from itertools import product

from blockyard.common.digests import RollingDigests, differing
from blockyard.common.messages.cluster import BUCKETS, TIER_DISK, TIER_GPU, TIER_HOST

ALL = TIER_HOST | TIER_DISK | TIER_GPU


def key(number: int) -> bytes:
    return hashlib.sha256(number.to_bytes(4, "big")).digest()


def of(*held: tuple[int, int]) -> bytes:
    digests = RollingDigests()
    for number, tiers in held:
        digests.flip(key(number), tiers)
    return digests.packed()


def test_equal_holdings_are_equal_in_any_order() -> None:
    assert of((1, TIER_HOST), (2, ALL)) == of((2, ALL), (1, TIER_HOST))
    assert differing(of((1, TIER_HOST)), of((1, TIER_HOST))) == []


def test_a_key_too_many_shows_in_its_bucket() -> None:
    assert differing(of((1, TIER_HOST)), of((1, TIER_HOST), (2, TIER_HOST))) == [key(2)[0]]


def test_each_mask_of_tiers_differs_from_each_other_one() -> None:
    for one, other in product(range(ALL + 1), repeat=2):
        assert bool(differing(of((1, one)), of((1, other)))) == (one != other)


def test_the_same_mistake_about_two_keys_of_a_bucket_shows() -> None:
    """A constant per tier would cancel itself out."""
    first, second = key(1), bytes([key(1)[0]]) + key(2)[1:]
    right, wrong = RollingDigests(), RollingDigests()
    for one in (first, second):
        right.flip(one, TIER_HOST)
        wrong.flip(one, TIER_DISK)
    assert differing(right.packed(), wrong.packed()) == [first[0]]


def test_a_tier_that_comes_and_goes_leaves_nothing() -> None:
    assert of((1, TIER_HOST), (1, TIER_HOST | TIER_DISK), (1, TIER_DISK)) == bytes(8 * BUCKETS)


def test_the_bytes_on_the_wire() -> None:
    digests = RollingDigests()
    digests.flip(bytes([1]) + bytes(7) + bytes(range(24)), TIER_HOST)
    assert digests.packed()[8:16] == bytes(range(16, 24))
    digests.flip(bytes([2]) + bytes(7) + bytes(range(24)), TIER_GPU)
    assert digests.packed()[16:24] == bytes(range(8))
