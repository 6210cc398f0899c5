"""A scheduled step as the flat arrays that paged attention reads."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from carpool.scheduling.outputs import ScheduledRequest


@dataclass(frozen=True, slots=True)
class InputBatch:
    """T tokens of B sequences, concatenated; logits are wanted for S of the tokens.

    input_ids, position_ids: i64[T]. past_lens: i32[B], tokens already in the KV cache.
    subsequence_begins: i32[B+1], where each sequence's new tokens start.
    block_indices: i32[sum of table lengths]; block_indices_begins: i32[B+1].
    max_context_len: i32[], the longest past + new. sampled_tokens_indices: i64[S], sorted.
    """

    input_ids: NDArray[np.int64]
    position_ids: NDArray[np.int64]
    past_lens: NDArray[np.int32]
    subsequence_begins: NDArray[np.int32]
    block_indices: NDArray[np.int32]
    block_indices_begins: NDArray[np.int32]
    max_context_len: NDArray[np.int32]
    sampled_tokens_indices: NDArray[np.int64]


def make_input_batch(
    scheduled: Sequence[ScheduledRequest], block_size: int, num_logits: Sequence[int]
) -> InputBatch:
    """Lay out `scheduled`; `num_logits[i]` is how many of item i's last tokens need logits."""
    starts = [item.start for item in scheduled]
    lengths = [item.num_tokens for item in scheduled]
    ends = [start + length for start, length in zip(starts, lengths, strict=True)]
    tokens = [
        item.request.all_token_ids[start:end]
        for item, start, end in zip(scheduled, starts, ends, strict=True)
    ]
    tables = [
        item.request.block_table[: -(-end // block_size)]
        for item, end in zip(scheduled, ends, strict=True)
    ]
    begins = _prefix_sums(lengths)
    num_tokens = int(begins[-1])
    return InputBatch(
        input_ids=np.fromiter(chain.from_iterable(tokens), np.int64, num_tokens),
        position_ids=np.arange(num_tokens, dtype=np.int64)
        + np.repeat(np.asarray(starts, np.int64) - begins[:-1], lengths),
        past_lens=np.asarray(starts, np.int32),
        subsequence_begins=begins,
        block_indices=np.fromiter(chain.from_iterable(tables), np.int32),
        block_indices_begins=_prefix_sums([len(table) for table in tables]),
        max_context_len=np.array(max(ends), np.int32),
        sampled_tokens_indices=_last_tokens(begins[1:], num_logits),
    )


def _prefix_sums(lengths: Sequence[int]) -> NDArray[np.int32]:
    sums = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=sums[1:])
    return sums


def _last_tokens(ends: NDArray[np.int32], counts: Sequence[int]) -> NDArray[np.int64]:
    wanted = [np.arange(end - count, end) for end, count in zip(ends, counts, strict=True) if count]
    return np.concatenate(wanted).astype(np.int64) if wanted else np.zeros(0, np.int64)
