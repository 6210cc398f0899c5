"""Requests of /v1/completions, /tokenize and /detokenize."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainValidator

from carpool.engine.chat_protocol import MAX_TOOLS
from carpool.engine.fields import at_most, refuse, whole
from carpool.engine.protocol import MAX_LOGPROBS, ApiModel, GenerationFields

MAX_PROMPTS = 128

Prompt = str | list[int]


def _prompts(value: Any) -> list[Prompt]:
    """A string, token ids, or a list of either, as a list of prompts."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise ValueError("must be a string, a list of token ids, or a list of either")
    if not value:
        raise ValueError("prompt is empty; it needs at least one token")
    if all(_is_token_id(item) for item in value):
        return [value]
    if len(value) > MAX_PROMPTS:
        raise ValueError(f"prompt has {len(value):,} prompts, but at most {MAX_PROMPTS} work")
    for index, item in enumerate(value):
        is_ids = isinstance(item, list) and all(_is_token_id(part) for part in item)
        if not (isinstance(item, str) or is_ids):
            raise ValueError(f"prompt[{index}] must be a string or a list of token ids")
    return value


def _token_ids(value: Any) -> list[int]:
    if not isinstance(value, list) or not all(_is_token_id(item) for item in value):
        raise ValueError("must be a list of token ids")
    return value


def _is_token_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


class CompletionRequest(GenerationFields):
    prompt: Annotated[list[Prompt], PlainValidator(_prompts)]
    # OpenAI's default; null means all that is left of the context.
    max_tokens: Annotated[int | None, whole(0)] = 16
    logprobs: Annotated[int | None, whole(0, MAX_LOGPROBS)] = None
    echo: bool | None = None
    add_special_tokens: bool | None = None
    best_of: Annotated[
        int | None,
        refuse(
            "best_of must be 1 or absent; ask for n and choose among them",
            unless=lambda value: value in (None, 1),
        ),
    ] = None
    suffix: Annotated[
        str | None,
        refuse(
            "suffix must be absent; this engine does not fill in the middle",
            unless=lambda value: value in (None, ""),
        ),
    ] = None


class TokenizeRequest(ApiModel):
    """Either `prompt`, or `messages` as in a chat request."""

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: Annotated[list[dict[str, Any]] | None, at_most(MAX_TOOLS)] = None
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    add_special_tokens: bool | None = None
    return_token_strs: bool = False


class DetokenizeRequest(ApiModel):
    model: str | None = None
    tokens: Annotated[list[int], BeforeValidator(_token_ids)]
