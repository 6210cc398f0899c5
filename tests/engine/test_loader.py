"""The KV cache fits into its budget, and says so when that is little."""

import logging
from types import SimpleNamespace

import pytest

from carpool.engine import loader
from carpool.engine.executor import KVCacheError
from carpool.engine.loader import scheduler_config
from carpool.engine.options import EngineOptions

MIB = 2**20
MODEL = SimpleNamespace(name="m", spec=SimpleNamespace(max_model_len=1024))


def num_blocks(monkeypatch, free_mib, **options):
    """Blocks of 32 tokens and 1 MiB; a full sequence has 32 of them."""
    monkeypatch.setattr(loader, "available_bytes", lambda: free_mib * MIB)
    return scheduler_config(MODEL, EngineOptions(**options), 32, MIB).num_blocks


@pytest.mark.parametrize(("free_mib", "blocks"), [(10_000, 2048), (1000, 300), (200, 60)])
def test_the_default_is_a_share_of_the_free_memory(monkeypatch, free_mib, blocks):
    assert num_blocks(monkeypatch, free_mib) == blocks


def test_little_room_is_told_in_one_line(monkeypatch, caplog):
    caplog.set_level(logging.WARNING)
    num_blocks(monkeypatch, 1000)
    num_blocks(monkeypatch, 200, kv_cache_memory=60 * MIB)
    assert not caplog.records
    num_blocks(monkeypatch, 200)
    [record] = caplog.records
    assert record.getMessage() == (
        "the KV cache has 60 MiB, 30% of the memory that is free: 1,920 tokens, which is 1.9 "
        "sequences of 1,024; free some memory, or give a larger --kv-cache-memory or a smaller "
        "--max-model-len"
    )


@pytest.mark.parametrize("options", [{}, {"kv_cache_memory": 31 * MIB}])
def test_no_room_for_one_sequence_is_an_error(monkeypatch, options):
    with pytest.raises(KVCacheError, match="one sequence of --max-model-len 1,024 needs 32 MiB"):
        num_blocks(monkeypatch, 100, **options)
