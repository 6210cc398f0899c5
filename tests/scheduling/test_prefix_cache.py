"""A block's key stands for its tokens, all before them, and the namespace."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.scheduling import prefix_cache
from carpool.scheduling.prefix_cache import HashPrefixCache, extend_prefix_keys


def keys_of(token_ids, namespace="", block_size=2):
    keys = []
    extend_prefix_keys(keys, namespace, token_ids, block_size)
    return keys


def test_only_full_blocks_have_keys():
    assert [len(keys_of(range(n))) for n in range(6)] == [0, 0, 1, 1, 2, 2]


def test_equal_tokens_after_different_ones_are_different():
    assert keys_of([1, 2, 3, 4])[1] != keys_of([5, 6, 3, 4])[1]


def test_namespaces_share_nothing():
    mine, yours = keys_of([1, 2, 3, 4], "mine"), keys_of([1, 2, 3, 4], "yours")
    assert {key.digest for key in mine}.isdisjoint(key.digest for key in yours)


@given(
    tokens=st.lists(st.integers(0, 2**31), max_size=20),
    cuts=st.lists(st.integers(0, 20), max_size=4),
    block_size=st.integers(1, 4),
)
def test_keys_grown_step_by_step_are_the_keys_of_the_whole(tokens, cuts, block_size):
    keys = []
    for cut in [*sorted(cuts), len(tokens)]:
        extend_prefix_keys(keys, "", tokens[:cut], block_size)
    assert keys == keys_of(tokens, block_size=block_size)


def test_a_colliding_digest_is_a_miss_and_not_a_wrong_hit(monkeypatch):
    monkeypatch.setattr(prefix_cache, "_digest", lambda parent, content: b"always the same")
    cache = HashPrefixCache()
    (key,), (other,), (elsewhere,) = keys_of([1, 2]), keys_of([3, 4]), keys_of([1, 2], "else")
    assert cache.insert(key, 7)
    assert not cache.insert(other, 8)
    assert cache.find(key) == 7
    assert cache.find(other) is None
    assert cache.find(elsewhere) is None


def test_a_removed_key_is_not_found():
    cache = HashPrefixCache()
    (key,) = keys_of([1, 2])
    cache.insert(key, 7)
    cache.remove(key)
    assert cache.find(key) is None
    with pytest.raises(KeyError):
        cache.remove(key)
