"""Streams of text add up to the decoded whole, and no character is split."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.engine.detokenizer import IncrementalDetokenizer
from carpool.engine.tokenizer import Tokenizer
from carpool.engine.vocabulary import Vocabulary, vocabulary_from_pieces

BYTES = Vocabulary(
    (*(bytes([value]) for value in range(256)), b"<s>", "é ".encode()), frozenset({256})
)
TRICKY = ["👋🏽", "👩‍👩‍👧‍👦", "🇰🇷🇳🇴", "你好", "e\u0301 é", "ก็ ยิ้ม", "한국어", "a\u0000b", "\ufffd"]


def stream(vocabulary: Vocabulary, token_ids: list[int], **options: bool) -> list[str]:
    detokenizer = IncrementalDetokenizer(vocabulary, **options)
    return [*(detokenizer.add(token_id) for token_id in token_ids), detokenizer.finish()]


@given(st.lists(st.integers(0, 300)), st.booleans())
def test_deltas_add_up_to_the_decoded_whole(token_ids, skip):
    deltas = stream(BYTES, token_ids, skip_special_tokens=skip)
    assert "".join(deltas) == BYTES.decode(token_ids, skip_special_tokens=skip)


@pytest.mark.parametrize("text", TRICKY)
def test_bytes_of_a_character_wait_for_its_last(text):
    data = list(text.encode())
    deltas = stream(BYTES, data)
    assert "".join(deltas) == text
    assert [delta for delta in deltas if delta] == list(text)


@pytest.mark.parametrize("text", TRICKY)
def test_a_tail_cut_inside_a_character_ends_in_the_replacement_character(text):
    for end in range(len(text.encode()) + 1):
        data = text.encode()[:end]
        deltas = stream(BYTES, list(data))
        assert "".join(deltas) == data.decode("utf-8", "replace")
        assert all("\ufffd" not in delta for delta in deltas[:-1]) or "\ufffd" in text


def test_special_tokens_are_skipped_or_kept():
    assert stream(BYTES, [97, 256, 98]) == ["a", "", "b", ""]
    assert stream(BYTES, [97, 256, 98], skip_special_tokens=False) == ["a", "<s>", "b", ""]


def test_ids_past_the_vocabulary_are_no_text():
    assert stream(BYTES, [97, 5000, 98]) == ["a", "", "b", ""]


PIECES = ["<s>", "▁", "▁leading", "▁x", "▁▁▁▁", ".", "<0xE4>", "<0xBD>", "<0xA0>", "x"]
SENTENCEPIECE = vocabulary_from_pieces(
    {token_id: piece.encode() for token_id, piece in enumerate(PIECES)}, frozenset({0})
)


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        (["▁", "▁leading", "▁x"], " leading x"),
        (["▁leading", "▁x"], "leading x"),
        (["▁▁▁▁", "."], "   ."),
        (["<s>", "▁x", "."], "x."),
        (["x", "▁x", "."], "x x."),
        (["<0xE4>", "<0xBD>", "<0xA0>", "."], "你."),
    ],
)
def test_sentencepiece_text_loses_one_leading_space(pieces, text):
    token_ids = [PIECES.index(piece) for piece in pieces]
    assert SENTENCEPIECE.decode(token_ids) == text
    assert "".join(stream(SENTENCEPIECE, token_ids)) == text


def test_text_that_continues_a_prompt_keeps_its_leading_space():
    assert "".join(stream(SENTENCEPIECE, [3], strip_leading_space=False)) == " x"


@given(st.lists(st.integers(0, len(PIECES) - 1)), st.booleans())
def test_sentencepiece_deltas_add_up_to_the_decoded_whole(token_ids, skip):
    deltas = stream(SENTENCEPIECE, token_ids, skip_special_tokens=skip)
    assert "".join(deltas) == SENTENCEPIECE.decode(token_ids, skip_special_tokens=skip)


def test_a_byte_level_vocabulary_keeps_its_bytes():
    vocabulary = vocabulary_from_pieces(
        {0: b" a", 1: "▁".encode(), 2: b"<0x41>", 3: b" b"}, frozenset(), 6
    )
    assert vocabulary.token_bytes == (b" a", "▁".encode(), b"<0x41>", b" b", b"", b"")
    assert vocabulary.decode([0, 1]) == " a▁"


@pytest.mark.model
@given(st.data())
def test_streams_of_the_real_vocabulary_add_up(demo_tokenizer: Tokenizer, data):
    token_ids = data.draw(st.lists(st.integers(0, demo_tokenizer.vocab_size - 1), max_size=20))
    for skip in (True, False):
        deltas = stream(demo_tokenizer.vocabulary, token_ids, skip_special_tokens=skip)
        assert "".join(deltas) == demo_tokenizer.decode(token_ids, skip_special_tokens=skip)


@pytest.mark.model
@given(data=st.data())
def test_streams_of_encoded_text_give_the_text_back(demo_tokenizer: Tokenizer, data):
    single_bytes = {token[0] for token in demo_tokenizer.token_bytes if len(token) == 1}
    text = data.draw(st.text(max_size=30).filter(lambda text: single_bytes >= set(text.encode())))
    token_ids = demo_tokenizer.encode(text)
    assert "".join(stream(demo_tokenizer.vocabulary, token_ids, skip_special_tokens=False)) == text
