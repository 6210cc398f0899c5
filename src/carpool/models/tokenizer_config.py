"""What the engine must know about a tokenizer beyond its own graph."""

import json
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from carpool.models.gguf import GGUF, GGUFError
from carpool.models.json_file import BadJSON, read_json

CONTROL, USER_DEFINED = 3, 4
"""`tokenizer.ggml.token_type` values (llama.cpp's llama_token_type)."""

END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>",
               "<|endoftext|>", "<|end_of_text|>")  # fmt: skip
"""Control tokens that end a turn whatever eos_token_id says; llama.cpp treats them alike."""


@dataclass(frozen=True, slots=True)
class TokenizerConfig:
    """Facts from GGUF metadata or from tokenizer_config.json and its neighbours.

    model: "gpt2" (byte-level BPE) or "llama" (SentencePiece with byte fallback).
    eos_token_ids: every token that ends a generation, the declared one first.
    special_token_ids: control tokens, never part of the visible text.
    added_token_ids: user-defined tokens, taken whole from the text and visible in it.
    """

    model: str
    chat_template: str | None
    bos_token_id: int | None
    bos_token: str | None
    eos_token_ids: tuple[int, ...]
    eos_token: str | None
    add_bos_token: bool
    special_token_ids: tuple[int, ...]
    added_token_ids: tuple[int, ...]


def tokenizer_from_gguf(gguf: GGUF) -> TokenizerConfig:
    """Read `tokenizer.*` metadata. Raises `GGUFError` when there is no usable vocabulary."""
    metadata = gguf.metadata
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens:
        raise GGUFError(f"{gguf.path}: no tokenizer.ggml.tokens, so it cannot read text")
    model = metadata.get("tokenizer.ggml.model")
    if model not in ("gpt2", "llama"):
        raise GGUFError(f"{gguf.path}: tokenizer model {model!r}; supported: gpt2, llama")
    types = metadata.get("tokenizer.ggml.token_type")
    if not isinstance(types, array) or len(types) != len(tokens):
        raise GGUFError(f"{gguf.path}: tokenizer.ggml.token_type does not match the vocabulary")
    special = tuple(i for i, kind in enumerate(types) if kind == CONTROL)
    added = tuple(i for i, kind in enumerate(types) if kind == USER_DEFINED)
    bos = _token_id(gguf, "bos", len(tokens))
    declared = [_token_id(gguf, name, len(tokens)) for name in ("eos", "eot", "eom")]
    ends = [i for i in declared if i is not None]
    ends += [i for i in special if tokens[i] in END_OF_TURN]
    template = metadata.get("tokenizer.chat_template")
    return TokenizerConfig(
        model=str(model),
        chat_template=template if isinstance(template, str) else None,
        bos_token_id=bos,
        bos_token=None if bos is None else tokens[bos],
        eos_token_ids=tuple(dict.fromkeys(ends)),
        eos_token=tokens[ends[0]] if ends else None,
        # SentencePiece models begin with BOS unless they say otherwise.
        add_bos_token=bool(metadata.get("tokenizer.ggml.add_bos_token", model == "llama")),
        special_token_ids=special,
        added_token_ids=added,
    )


def tokenizer_from_folder(folder: Path) -> TokenizerConfig:
    """Read the JSON files beside a Hugging Face or exported model; absent files say nothing.

    Raises `BadJSON` for a file that is not JSON.
    """
    config = read_json(folder / "tokenizer_config.json", default={})
    tokenizer = read_json(folder / "tokenizer.json", default={})
    generation = read_json(folder / "generation_config.json", default={})
    model_config = read_json(folder / "config.json", default={})
    added = _added_tokens(config, tokenizer)
    ids = {text: number for number, (text, _) in added.items()}
    bos_token, eos_token = _text(config.get("bos_token")), _text(config.get("eos_token"))
    bos = _first_id(generation.get("bos_token_id"), model_config.get("bos_token_id"))
    declared = generation.get("eos_token_id", model_config.get("eos_token_id"))
    ends = declared if isinstance(declared, list) else [declared]
    special = tuple(sorted(i for i, (_, is_special) in added.items() if is_special))
    ends = [ids.get(eos_token or ""), *ends, *(i for i in special if added[i][0] in END_OF_TURN)]
    return TokenizerConfig(
        model=_tokenizer_model(config, tokenizer),
        chat_template=_chat_template(folder, config),
        bos_token_id=ids.get(bos_token or "", bos),
        bos_token=bos_token,
        eos_token_ids=tuple(dict.fromkeys(i for i in ends if isinstance(i, int))),
        eos_token=eos_token,
        add_bos_token=bool(config.get("add_bos_token", False)),
        special_token_ids=special,
        added_token_ids=tuple(sorted(set(added) - set(special))),
    )


def _token_id(gguf: GGUF, name: str, vocab_size: int) -> int | None:
    key = f"tokenizer.ggml.{name}_token_id"
    value = gguf.metadata.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or not 0 <= value < vocab_size:
        raise GGUFError(f"{gguf.path}: {key} is {value!r}; the vocabulary has {vocab_size} tokens")
    return value


def _added_tokens(
    config: Mapping[str, object], tokenizer: Mapping[str, object]
) -> dict[int, tuple[str, bool]]:
    """Token id -> (text, is special). Raises `BadJSON` for an entry of another form."""
    listed = tokenizer.get("added_tokens")
    decoder = config.get("added_tokens_decoder")
    pairs = [(token, None) for token in (listed if isinstance(listed, list) else [])]
    pairs += [(token, i) for i, token in (decoder if isinstance(decoder, dict) else {}).items()]
    added: dict[int, tuple[str, bool]] = {}
    for token, number in pairs:
        try:
            token_id = int(token["id"] if number is None else number)
            added[token_id] = str(token["content"]), bool(token.get("special"))
        except (KeyError, TypeError, ValueError, AttributeError):
            raise BadJSON(f"an added token of the tokenizer is malformed: {token!r}") from None
    return added


def _tokenizer_model(config: Mapping[str, object], tokenizer: Mapping[str, object]) -> str:
    if tokenizer:
        parts = [tokenizer.get("decoder"), tokenizer.get("pre_tokenizer")]
        return "gpt2" if '"ByteLevel"' in json.dumps(parts) else "llama"
    return "llama" if "Llama" in str(config.get("tokenizer_class")) else "gpt2"


def _chat_template(folder: Path, config: Mapping[str, object]) -> str | None:
    """chat_template.jinja wins; of several named templates, the one named "default"."""
    jinja = folder / "chat_template.jinja"
    if jinja.is_file():
        return jinja.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):
        named = [item for item in template if isinstance(item, dict)]
        template = next((i.get("template") for i in named if i.get("name") == "default"), None)
    return template if isinstance(template, str) else None


def _text(token: object) -> str | None:
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _first_id(*candidates: object) -> int | None:
    for candidate in candidates:
        if isinstance(candidate, int):
            return candidate
    return None
