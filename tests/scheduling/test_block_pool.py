"""Blocks are handed out once, found only while they hold what they say, and reused in order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.scheduling.block_pool import BlockPool
from carpool.scheduling.invariants import InvariantViolation
from carpool.scheduling.prefix_cache import (
    HashPrefixCache,
    NoPrefixCache,
    PrefixKey,
    extend_prefix_keys,
)


def keys_of(*token_ids, namespace="", block_size=2):
    keys: list[PrefixKey] = []
    extend_prefix_keys(keys, namespace, token_ids, block_size)
    return keys


def fill(pool, keys):
    """Allocate and register blocks for `keys`, as a request that computed them would."""
    table, num_hits = pool.allocate(keys, len(keys))
    for block_id, key in list(zip(table, keys, strict=True))[num_hits:]:
        pool.register(block_id, key)
    return table


@pytest.fixture
def pool():
    return BlockPool(4, HashPrefixCache())


def test_all_blocks_can_be_taken_and_no_more(pool):
    assert sorted(pool.allocate((), 4).block_ids) == [0, 1, 2, 3]
    assert pool.allocate((), 1) is None
    assert pool.allocate_one() is None
    assert (pool.num_used, pool.num_cached, pool.num_free) == (4, 0, 0)


def test_an_allocation_that_does_not_fit_changes_nothing(pool):
    keys = keys_of(1, 2, 3, 4)
    pool.release(fill(pool, keys))
    held = pool.allocate((), 1).block_ids
    assert pool.allocate(keys, 4) is None
    assert pool.count_hits(keys) == 2
    pool.check_invariants([held])


def test_headroom_is_left_over(pool):
    assert pool.allocate((), 3, headroom=2) is None
    assert pool.allocate((), 3, headroom=1) is not None


def test_a_hit_is_held_by_the_same_operation_that_finds_it(pool):
    keys = keys_of(1, 2, 3, 4)
    first = fill(pool, keys)
    pool.release(first)
    second = pool.allocate(keys, 2)
    assert second == (first, 2)
    others = pool.allocate((), 2).block_ids
    assert not set(others) & set(first)
    assert pool.allocate((), 1) is None
    pool.check_invariants([first, others])


def test_hits_that_nobody_holds_count_as_blocks_taken(pool):
    keys = keys_of(1, 2, 3, 4)
    pool.release(fill(pool, keys))
    pool.allocate((), 2)
    assert pool.allocate(keys, 3) is None
    assert pool.allocate(keys, 2) is not None


def test_useless_blocks_are_reused_before_cached_ones(pool):
    cached = fill(pool, keys_of(1, 2, 3, 4))
    useless = pool.allocate((), 2).block_ids
    pool.release(useless)
    pool.release(cached)
    assert sorted(pool.allocate((), 2).block_ids) == sorted(useless)
    assert pool.count_hits(keys_of(1, 2, 3, 4)) == 2


def test_a_chain_is_evicted_from_its_tail(pool):
    keys = keys_of(1, 2, 3, 4, 5, 6, 7, 8)
    pool.release(fill(pool, keys))
    for num_left in (3, 2, 1, 0):
        pool.allocate_one()
        assert pool.count_hits(keys) == num_left


def test_the_least_recently_used_chain_is_evicted_first(pool):
    old, new = keys_of(1, 2, 3, 4), keys_of(5, 6, 7, 8)
    pool.release(fill(pool, old))
    pool.release(fill(pool, new))
    pool.release(pool.allocate(old, 2).block_ids)
    pool.allocate((), 2)
    assert pool.count_hits(old) == 2
    assert pool.count_hits(new) == 0


def test_a_shared_block_stays_until_its_last_holder_leaves(pool):
    keys = keys_of(1, 2)
    first = fill(pool, keys)
    second = pool.allocate(keys, 1).block_ids
    pool.release(first)
    assert pool.num_used == 1
    assert not set(pool.allocate((), 3).block_ids) & set(second)
    pool.release(second)
    assert pool.num_cached == 1


def test_the_first_block_with_some_content_stays_the_one_that_is_found(pool):
    keys = keys_of(1, 2)
    first = fill(pool, keys)
    twin = pool.allocate((), 1).block_ids
    pool.register(twin[0], keys[0])
    assert pool.allocate(keys, 1).block_ids == first
    pool.release(twin)
    pool.check_invariants([first, first])
    assert pool.num_free == 3


def test_without_a_cache_nothing_is_found():
    pool = BlockPool(4, NoPrefixCache())
    keys = keys_of(1, 2, 3, 4)
    pool.release(fill(pool, keys))
    assert pool.allocate(keys, 2).num_hits == 0
    assert pool.num_cached == 0


def test_the_check_finds_a_lost_reference(pool):
    table = pool.allocate((), 2).block_ids
    with pytest.raises(InvariantViolation, match="1 references, but 0"):
        pool.check_invariants([table[:1]])


@given(data=st.data(), num_blocks=st.integers(1, 6))
def test_used_cached_and_free_blocks_add_up_after_any_operations(data, num_blocks):
    pool = BlockPool(num_blocks, HashPrefixCache())
    tables = []
    for _ in range(data.draw(st.integers(0, 40))):
        if tables and data.draw(st.booleans()):
            pool.release(tables.pop(data.draw(st.integers(0, len(tables) - 1))))
        else:
            tokens = data.draw(st.lists(st.integers(0, 1), max_size=6))
            keys = keys_of(*tokens, block_size=1)
            allocation = pool.allocate(keys, len(keys))
            if allocation is not None:
                tables.append(allocation.block_ids)
                for block_id, key in list(zip(tables[-1], keys, strict=True))[
                    allocation.num_hits :
                ]:
                    pool.register(block_id, key)
        pool.check_invariants(tables)
        assert pool.num_used + pool.num_cached + pool.num_free == num_blocks
        assert pool.num_available == pool.num_cached + pool.num_free
