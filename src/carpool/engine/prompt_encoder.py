"""Prompt text to token ids, without tokenising what can never fit."""

from carpool.engine.client import EngineClient
from carpool.engine.encode_inside import EncodeInside
from carpool.engine.errors import invalid
from carpool.engine.plain_text import MARK, pieces

# Below this many bytes per token of the context, tokenising is quicker than thinking.
_BYTES_PER_TOKEN = 16


def encode_prompt(
    engine: EngineClient, text: str, field: str, add_special_tokens: bool = False
) -> list[int]:
    """Token ids of `text`. Everybody's prompts take turns at the tokeniser, so one of
    megabytes is refused by its length alone: no token is longer than the longest. A rendered
    chat is tokenised in the pieces that `plain_text` makes of it.

    Raises ApiError (400).
    """
    num_bytes = len(text.encode("utf-8", "replace"))
    if num_bytes > _BYTES_PER_TOKEN * engine.max_model_len:
        longest = max(map(len, engine.tokenizer.token_bytes))
        if num_bytes > longest * engine.max_model_len:
            raise invalid(
                f"{field} {'have' if field == 'messages' else 'has'} at least "
                f"{num_bytes // longest:,} tokens ({num_bytes:,} bytes of text), but "
                f"max_model_len is {engine.max_model_len:,}; shorten the prompt",
                field,
                "context_length_exceeded",
            )
    if MARK not in text:
        return engine.tokenizer.encode(text, add_special_tokens)
    first, *rest = pieces(text)
    token_ids = engine.tokenizer.encode(first, add_special_tokens)
    encode_inside = EncodeInside(engine.tokenizer.encode)
    for piece in rest:
        token_ids += encode_inside(piece)
    return token_ids
