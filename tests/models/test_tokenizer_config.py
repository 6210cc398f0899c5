"""Tokenizer facts from GGUF metadata and from Hugging Face files."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from carpool.models.gguf import GGUFError, read_gguf
from carpool.models.json_file import BadJSON
from carpool.models.tokenizer_config import (
    TokenizerConfig,
    tokenizer_from_folder,
    tokenizer_from_gguf,
)

Write = Callable[..., Path]

TOKENS = ["<s>", "<|im_end|>", "</s>", "<tool>", "a"]


def gguf_tokenizer(write: Write, **metadata: object) -> TokenizerConfig:
    named = {f"tokenizer.ggml.{key}": value for key, value in metadata.items()}
    defaults = {"tokenizer.ggml.tokens": TOKENS, "tokenizer.ggml.token_type": [3, 3, 3, 4, 1]}
    return tokenizer_from_gguf(read_gguf(write(**defaults | named)))


def test_facts_of_a_gguf(write_gguf: Write) -> None:
    facts = gguf_tokenizer(write_gguf, eos_token_id=2, bos_token_id=0)
    assert facts.model == "gpt2"
    assert facts.chat_template == "{{ messages }}"
    assert (facts.bos_token_id, facts.bos_token) == (0, "<s>")
    assert (facts.eos_token_ids, facts.eos_token) == ((2, 1), "</s>")
    assert (facts.special_token_ids, facts.added_token_ids) == ((0, 1, 2), (3,))
    assert facts.add_bos_token is False


def test_sentencepiece_begins_with_bos_unless_told_otherwise(write_gguf: Write) -> None:
    assert gguf_tokenizer(write_gguf, model="llama").add_bos_token is True
    assert gguf_tokenizer(write_gguf, model="llama", add_bos_token=False).add_bos_token is False


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"model": "t5"}, "'t5'; supported: gpt2, llama"),
        ({"eos_token_id": 5}, "eos_token_id is 5; the vocabulary has 5 tokens"),
        ({"token_type": [1, 1]}, "token_type does not match"),
        ({"tokens": "none"}, r"no tokenizer\.ggml\.tokens"),
    ],
)
def test_unusable_vocabulary(write_gguf: Write, metadata: dict[str, object], message: str) -> None:
    with pytest.raises(GGUFError, match=message):
        gguf_tokenizer(write_gguf, **metadata)


def write_json(folder: Path, **files: object) -> None:
    for name, value in files.items():
        (folder / f"{name}.json").write_text(json.dumps(value))


def test_facts_of_a_folder(tmp_path: Path) -> None:
    write_json(
        tmp_path,
        tokenizer_config={
            "bos_token": None,
            "eos_token": {"content": "<|im_end|>"},
            "chat_template": "old",
            "added_tokens_decoder": {
                "5": {"content": "<|endoftext|>", "special": True},
                "6": {"content": "<|im_end|>", "special": True},
                "7": {"content": "<tool_call>", "special": False},
            },
        },
        generation_config={"eos_token_id": [6, 5], "bos_token_id": 5},
        tokenizer={"decoder": {"type": "ByteLevel"}},
    )
    facts = tokenizer_from_folder(tmp_path)
    assert facts.model == "gpt2"
    assert (facts.eos_token_ids, facts.eos_token) == ((6, 5), "<|im_end|>")
    assert (facts.special_token_ids, facts.added_token_ids) == ((5, 6), (7,))
    assert facts.chat_template == "old"
    (tmp_path / "chat_template.jinja").write_text("new")
    assert tokenizer_from_folder(tmp_path).chat_template == "new"


def test_of_several_templates_the_default_is_taken(tmp_path: Path) -> None:
    templates = [{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}]
    write_json(tmp_path, tokenizer_config={"chat_template": templates})
    assert tokenizer_from_folder(tmp_path).chat_template == "d"


def test_an_empty_folder_has_no_facts(tmp_path: Path) -> None:
    facts = tokenizer_from_folder(tmp_path)
    assert (facts.eos_token_ids, facts.chat_template) == ((), None)


def test_malformed_files_are_named(tmp_path: Path) -> None:
    write_json(tmp_path, tokenizer={"added_tokens": [{"text": 1}]})
    with pytest.raises(BadJSON, match="added token"):
        tokenizer_from_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(BadJSON, match=r"tokenizer\.json: not valid JSON"):
        tokenizer_from_folder(tmp_path)
