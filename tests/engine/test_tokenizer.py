"""Text to tokens and back, with the demo model's tokeniser."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openvino_genai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.engine.tokenizer import Tokenizer, TokenizerConfig, TokenizerError

TEXTS = [
    "<|im_start|>user\nHello 你好 👋🏽 é<|im_end|>\n",
    "  two  spaces",
    " a .b , c 's n't",
    "",
    "\n\n\t",
    "a\0b",
    "Five, Four, Thre",
]


def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path):
    with pytest.raises(TokenizerError, match=r"openvino_tokenizer\.xml is missing"):
        Tokenizer(tmp_path, TokenizerConfig())


@pytest.mark.model
@pytest.mark.parametrize("text", TEXTS)
def test_text_survives_the_way_there_and_back(demo_tokenizer: Tokenizer, text):
    token_ids = demo_tokenizer.encode(text)
    assert demo_tokenizer.decode(token_ids, skip_special_tokens=False) == text


@pytest.mark.model
@given(data=st.data())
def test_decoding_agrees_with_openvino(demo_tokenizer: Tokenizer, openvino_tokenizer, data):
    """On any tokens that are text; OpenVINO drops bytes that are not."""
    token_ids = data.draw(st.lists(st.integers(0, demo_tokenizer.vocab_size - 1), max_size=20))
    for skip in (True, False):
        text = demo_tokenizer.decode(token_ids, skip_special_tokens=skip)
        if token_ids and "\ufffd" not in text:
            assert text == openvino_tokenizer.decode(token_ids, skip_special_tokens=skip)


@pytest.mark.model
def test_every_token_that_is_text_agrees_with_openvino(
    demo_tokenizer: Tokenizer, openvino_tokenizer
):
    texts = [demo_tokenizer.decode([i], False) for i in range(demo_tokenizer.vocab_size)]
    whole = [i for i, text in enumerate(texts) if "\ufffd" not in text]
    decoded = openvino_tokenizer.decode([[i] for i in whole], skip_special_tokens=False)
    assert decoded == [texts[i] for i in whole]
    assert len(whole) > 48_000


@pytest.mark.model
def test_long_text_is_not_cut(demo_tokenizer: Tokenizer):
    text = "word " * 30_000
    assert demo_tokenizer.decode(demo_tokenizer.encode(text)) == text


@pytest.mark.model
def test_lone_surrogates_become_replacement_characters(demo_tokenizer: Tokenizer):
    token_ids = demo_tokenizer.encode("a\ud800b \ud83d\ude00")
    assert demo_tokenizer.decode(token_ids) == "a\ufffdb 😀"


@pytest.mark.model
def test_bos_is_added_once_and_only_where_the_model_wants_it(
    model_folder: Path, demo_tokenizer: Tokenizer
):
    assert demo_tokenizer.encode("Hi", add_special_tokens=True) == demo_tokenizer.encode("Hi")
    config = TokenizerConfig(bos_token_id=1, add_bos=True, bos_token="<|im_start|>")
    wanting = Tokenizer(model_folder, config)
    with_bos = [1, *wanting.encode("Hi")]
    assert wanting.encode("Hi", add_special_tokens=True) == with_bos
    assert wanting.encode("<|im_start|>Hi", add_special_tokens=True) == with_bos
    assert wanting.encode("", add_special_tokens=True) == [1]


@pytest.mark.model
def test_a_model_may_have_more_logits_than_tokens(model_folder: Path, demo_tokenizer: Tokenizer):
    padded = Tokenizer(model_folder, TokenizerConfig(vocab_size=demo_tokenizer.vocab_size + 7))
    assert padded.vocab_size == demo_tokenizer.vocab_size + 7
    assert padded.token_bytes[-1] == b""


@pytest.mark.model
def test_tokens_read_as_text_for_logprobs(demo_tokenizer: Tokenizer):
    assert [demo_tokenizer.token_text(i) for i in demo_tokenizer.encode(" the end")] == [
        " the",
        " end",
    ]
    assert demo_tokenizer.token_text(0) == "<|endoftext|>"


@pytest.mark.model
def test_threads_may_share_it(demo_tokenizer: Tokenizer):
    texts = [f"text number {i} " * 20 for i in range(40)]
    with ThreadPoolExecutor(4) as pool:
        encoded = list(pool.map(demo_tokenizer.encode, texts))
    assert [demo_tokenizer.decode(token_ids) for token_ids in encoded] == texts


@pytest.fixture(scope="module")
def openvino_tokenizer(model_folder: Path) -> openvino_genai.Tokenizer:
    return openvino_genai.Tokenizer(model_folder)
