"""/v1/completions: from a checked request to requests for the engine."""

from collections.abc import Mapping, Sequence
from typing import Any

from carpool.engine.client import EngineClient
from carpool.engine.completion_protocol import CompletionRequest, Prompt
from carpool.engine.completion_response import CompletionFormat, CompletionResponse, EchoedPrompt
from carpool.engine.constraint import output_constraint
from carpool.engine.errors import invalid
from carpool.engine.prepared import Prepared, unix_time, validated
from carpool.engine.prompt_encoder import encode_prompt
from carpool.engine.request_builder import (
    Caller,
    OutputWishes,
    build_requests,
    check_token_ids,
    require_model,
)
from carpool.engine.sse import ResponseHead
from carpool.engine.streaming import RequestFields
from carpool.engine.tokenizer import Tokenizer

MAX_CHOICES = 128
"""Of all prompts together: each is a request of the engine and takes a place in its queue."""
MAX_PROMPT_LOGPROBS = 2**20
"""Of all choices together: each is computed, kept, and written."""


def prepare_completion(engine: EngineClient, body: Mapping[str, Any], caller: Caller) -> Prepared:
    """Tokenises, so it takes a while: not for the event loop.

    Raises ApiError.
    """
    request = validated(CompletionRequest, body)
    model = require_model(engine, request.model)
    _check_size(request)
    constraint = output_constraint(request)
    prompts = _token_ids(engine, request.prompt, request.add_special_tokens is not False)
    _check_prompt_logprobs(request, prompts)
    is_echo_only = request.max_tokens == 0
    wishes = OutputWishes(
        prompt_field="prompt",
        max_tokens=1 if is_echo_only else request.max_tokens,
        logprobs=request.logprobs,
        prompt_logprobs=request.logprobs if request.echo else None,
        grammar=constraint and constraint.grammar,
        skip_special_tokens=request.skip_special_tokens is not False,
    )
    requests = build_requests(engine, request, prompts, caller, wishes)
    completion_format = CompletionFormat(
        head=ResponseHead(f"cmpl-{caller.request_id}", "text_completion", unix_time(), model),
        includes_usage=request.includes_usage,
        num_prompts=len(prompts),
        num_choices=request.num_choices,
        num_logprobs=request.logprobs,
        echoes=_echoes(request, prompts, engine.tokenizer) if request.echo else (),
        is_echo_only=is_echo_only,
    )
    return Prepared(
        requests=requests,
        response=CompletionResponse(engine.tokenizer, completion_format),
        is_stream=bool(request.stream),
        fields=RequestFields("prompt", constraint.field if constraint else ""),
    )


def _check_size(request: CompletionRequest) -> None:
    if request.max_tokens == 0 and not request.echo:
        raise invalid("max_tokens is 0, but must be at least 1 unless echo is true", "max_tokens")
    num_choices = len(request.prompt) * request.num_choices
    if num_choices > MAX_CHOICES:
        raise invalid(
            f"n is {request.num_choices} for each of {len(request.prompt)} prompts: "
            f"{num_choices:,} choices, but at most {MAX_CHOICES:,} work",
            "n",
        )


def _check_prompt_logprobs(request: CompletionRequest, prompts: Sequence[Sequence[int]]) -> None:
    if not request.echo or request.logprobs is None:
        return
    num_tokens = sum(map(len, prompts)) * request.num_choices
    num_logprobs = num_tokens * (request.logprobs + 1)
    if num_logprobs > MAX_PROMPT_LOGPROBS:
        raise invalid(
            f"echo with logprobs {request.logprobs} asks for {num_logprobs:,} log-probabilities of "
            f"prompts ({num_tokens:,} tokens), but at most {MAX_PROMPT_LOGPROBS:,} work; send "
            f"fewer prompts or a smaller logprobs or n",
            "logprobs",
        )


def _token_ids(
    engine: EngineClient, prompts: Sequence[Prompt], add_special_tokens: bool
) -> list[list[int]]:
    tokenised = []
    for index, prompt in enumerate(prompts):
        field = "prompt" if len(prompts) == 1 else f"prompt[{index}]"
        if isinstance(prompt, str):
            tokenised.append(encode_prompt(engine, prompt, field, add_special_tokens))
        else:
            check_token_ids(prompt, engine.vocab_size, field)
            tokenised.append(prompt)
    return tokenised


def _echoes(
    request: CompletionRequest, prompts: Sequence[Sequence[int]], tokenizer: Tokenizer
) -> list[EchoedPrompt]:
    return [
        EchoedPrompt(
            text if isinstance(text, str) else tokenizer.decode(ids, skip_special_tokens=False),
            tuple(ids),
        )
        for text, ids in zip(request.prompt, prompts, strict=True)
    ]
