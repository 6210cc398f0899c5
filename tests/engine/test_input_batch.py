"""Scheduled sequences as flat arrays: every token at its place, every block in its table."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from carpool.engine.input_batch import make_input_batch
from carpool.scheduling.outputs import ScheduledRequest
from carpool.scheduling.request import Request


def scheduled(tokens, start, num_tokens, block_table):
    request = Request("r", tokens, max_tokens=9)
    request.block_table = list(block_table)
    request.num_computed_tokens = start
    return ScheduledRequest(request, start, num_tokens, start + num_tokens == len(tokens))


def test_a_decode_beside_a_chunk_of_a_prompt():
    decode = scheduled(range(100, 106), 5, 1, [7, 2])
    chunk = scheduled(range(200, 220), 4, 6, [5, 9, 1, 3, 0])
    batch = make_input_batch([decode, chunk], 4, [1, 0])
    assert batch.input_ids.tolist() == [105, 204, 205, 206, 207, 208, 209]
    assert batch.position_ids.tolist() == [5, 4, 5, 6, 7, 8, 9]
    assert batch.past_lens.tolist() == [5, 4]
    assert batch.subsequence_begins.tolist() == [0, 1, 7]
    # Of the chunk's table only the blocks that its tokens so far fill.
    assert batch.block_indices.tolist() == [7, 2, 5, 9, 1]
    assert batch.block_indices_begins.tolist() == [0, 2, 5]
    assert batch.max_context_len.tolist() == 10
    assert batch.sampled_tokens_indices.tolist() == [0]


def test_logits_are_of_the_last_tokens_asked_for():
    items = [scheduled(range(5), 0, 5, [0, 1]), scheduled(range(3), 0, 3, [2])]
    assert make_input_batch(items, 4, [5, 1]).sampled_tokens_indices.tolist() == [0, 1, 2, 3, 4, 7]
    assert make_input_batch(items, 4, [0, 0]).sampled_tokens_indices.tolist() == []
    assert make_input_batch(items, 4, [2, 0]).sampled_tokens_indices.tolist() == [3, 4]


def test_the_arrays_have_the_types_that_the_model_takes():
    batch = make_input_batch([scheduled(range(3), 1, 2, [0])], 4, [1])
    for name in ("input_ids", "position_ids", "sampled_tokens_indices"):
        assert getattr(batch, name).dtype == np.int64
    for name in ("past_lens", "subsequence_begins", "block_indices", "block_indices_begins"):
        assert getattr(batch, name).dtype == np.int32
    assert (batch.max_context_len.dtype, batch.max_context_len.shape) == (np.int32, ())


@st.composite
def sequences(draw):
    length = draw(st.integers(1, 40))
    start = draw(st.integers(0, length - 1))
    num_tokens = draw(st.integers(1, length - start))
    return length, start, num_tokens, draw(st.integers(0, num_tokens))


@given(st.lists(sequences(), min_size=1, max_size=6), st.integers(1, 8))
def test_every_token_is_read_back_at_its_place(shapes, block_size):
    items, num_logits, next_block = [], [], 0
    for number, (length, start, num_tokens, count) in enumerate(shapes):
        num_blocks = -(-length // block_size)
        table = range(next_block, next_block + num_blocks)
        next_block += num_blocks
        tokens = range(1000 * number, 1000 * number + length)
        items.append(scheduled(tokens, start, num_tokens, table))
        num_logits.append(count)
    batch = make_input_batch(items, block_size, num_logits)
    wanted = []
    for number, (_, start, num_tokens, count) in enumerate(shapes):
        begin, end = batch.subsequence_begins[number : number + 2]
        positions = batch.position_ids[begin:end]
        assert positions.tolist() == list(range(start, start + num_tokens))
        assert batch.input_ids[begin:end].tolist() == [1000 * number + p for p in positions]
        first, last = batch.block_indices_begins[number : number + 2]
        table = batch.block_indices[first:last].tolist()
        assert table == items[number].request.block_table[: len(table)]
        assert len(table) == -(-(start + num_tokens) // block_size)
        wanted += range(end - count, end)
    assert batch.sampled_tokens_indices.tolist() == wanted
    assert batch.max_context_len == max(start + count for _, start, count, _ in shapes)
