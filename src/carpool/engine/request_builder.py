"""Turns checked API fields and tokenised prompts into requests for the engine."""

from collections.abc import Sequence
from dataclasses import dataclass

from carpool.engine.client import EngineClient
from carpool.engine.errors import ApiError, invalid, show
from carpool.engine.generation import GenerationRequest
from carpool.engine.protocol import GenerationFields
from carpool.engine.sampling_params import SamplingParams

# Dividing logits by less than this overflows; the field treats it as greedy.
MIN_TEMPERATURE = 1e-5
# The step loop takes in those of all choices at once, about 10 million a second.
MAX_LISTED_TOKENS = 2**19


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and under which id: `request_id` is unique among those that run."""

    request_id: str
    person_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputWishes:
    """What the two APIs spell differently. `max_tokens` None: all that is left."""

    prompt_field: str
    max_tokens: int | None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    grammar: str | None = None
    skip_special_tokens: bool = True


def require_model(engine: EngineClient, model: str | None) -> str:
    """The name to answer with. No name means the one model there is.

    Raises ApiError (404).
    """
    names = (engine.model_name, *engine.model_aliases)
    if model is None:
        return engine.model_name
    if model not in names:
        raise ApiError(
            404,
            f'model is "{model[:80]}", but this server has {" and ".join(names)}',
            param="model",
            code="model_not_found",
        )
    return model


def build_requests(
    engine: EngineClient,
    fields: GenerationFields,
    prompts: Sequence[Sequence[int]],
    caller: Caller,
    wishes: OutputWishes,
) -> tuple[GenerationRequest, ...]:
    """`n` requests for each prompt, in the order of the choices.

    Raises ApiError (400) for what the model's vocabulary or context cannot take.
    """
    _check_vocabulary(fields, engine.vocab_size)
    _check_listed_tokens(fields, len(prompts) * fields.num_choices)
    is_single = len(prompts) * fields.num_choices == 1
    requests: list[GenerationRequest] = []
    for number, prompt in enumerate(prompts):
        field = wishes.prompt_field if len(prompts) == 1 else f"{wishes.prompt_field}[{number}]"
        max_tokens = _max_tokens(engine, field, len(prompt), wishes.max_tokens)
        _check_min_tokens(fields, max_tokens)
        prompt_token_ids = tuple(prompt)
        for choice in range(fields.num_choices):
            suffix = "" if is_single else f"-{len(requests)}"
            requests.append(
                GenerationRequest(
                    request_id=f"{caller.request_id}{suffix}",
                    prompt_token_ids=prompt_token_ids,
                    sampling=_sampling_params(fields, wishes, max_tokens, choice),
                    stop=fields.stop,
                    skip_special_tokens=wishes.skip_special_tokens,
                    person_id=caller.person_id,
                )
            )
    return tuple(requests)


def _max_tokens(engine: EngineClient, field: str, num_prompt: int, max_tokens: int | None) -> int:
    limit = engine.max_model_len
    if num_prompt == 0:
        raise invalid(f"{field} is empty; it needs at least one token", field, "empty_prompt")
    has = "have" if field == "messages" else "has"
    if num_prompt >= limit:
        raise invalid(
            f"{field} {has} {num_prompt:,} tokens, but max_model_len is {limit:,} with at least "
            f"one for the answer; shorten the prompt",
            field,
            "context_length_exceeded",
        )
    room = limit - num_prompt
    if max_tokens is not None and max_tokens > room:
        raise invalid(
            f"{field} {has} {num_prompt:,} tokens and max_tokens is {max_tokens:,}: together "
            f"{num_prompt + max_tokens:,}, but max_model_len is {limit:,}; "
            f"ask for at most {room:,} tokens or shorten the prompt",
            field,
            "context_length_exceeded",
        )
    return room if max_tokens is None else max_tokens


def _check_min_tokens(fields: GenerationFields, max_tokens: int) -> None:
    if fields.min_tokens and fields.min_tokens > max_tokens:
        raise invalid(
            f"min_tokens is {fields.min_tokens:,}, but max_tokens is {max_tokens:,}; "
            f"min_tokens must not be more",
            "min_tokens",
        )


def _check_vocabulary(fields: GenerationFields, vocab_size: int) -> None:
    check_token_ids([token_id for token_id, _ in fields.logit_bias], vocab_size, "logit_bias")
    check_token_ids(fields.stop_token_ids or (), vocab_size, "stop_token_ids")


def _check_listed_tokens(fields: GenerationFields, num_choices: int) -> None:
    num_listed = len(fields.logit_bias) + len(fields.stop_token_ids or ())
    if num_listed * num_choices > MAX_LISTED_TOKENS:
        raise invalid(
            f"logit_bias and stop_token_ids have {num_listed:,} entries for each of "
            f"{num_choices:,} choices, but at most {MAX_LISTED_TOKENS:,} work together; "
            f"send fewer entries or a smaller n",
            "logit_bias" if fields.logit_bias else "stop_token_ids",
        )


def check_token_ids(token_ids: Sequence[int], vocab_size: int, field: str) -> None:
    """Raises ApiError (400) for the first id that the vocabulary does not have."""
    for token_id in token_ids:
        if not 0 <= token_id < vocab_size:
            raise invalid(
                f"{field} has token id {show(token_id)}, but the vocabulary has {vocab_size:,} "
                f"tokens (0 to {vocab_size - 1})",
                field,
            )


def _sampling_params(
    fields: GenerationFields, wishes: OutputWishes, max_tokens: int, choice: int
) -> SamplingParams:
    temperature = 1.0 if fields.temperature is None else fields.temperature
    return SamplingParams(
        max_tokens=max_tokens,
        min_tokens=fields.min_tokens or 0,
        temperature=temperature if temperature >= MIN_TEMPERATURE else 0.0,
        top_p=1.0 if fields.top_p is None else fields.top_p,
        top_k=max(0, fields.top_k or 0),
        min_p=fields.min_p or 0.0,
        presence_penalty=fields.presence_penalty or 0.0,
        frequency_penalty=fields.frequency_penalty or 0.0,
        repetition_penalty=1.0 if fields.repetition_penalty is None else fields.repetition_penalty,
        logit_bias=fields.logit_bias,
        # Each choice of one request draws differently, and the same way every time.
        seed=None if fields.seed is None else fields.seed + choice,
        logprobs=wishes.logprobs,
        prompt_logprobs=wishes.prompt_logprobs,
        ignore_eos=bool(fields.ignore_eos),
        stop_token_ids=frozenset(fields.stop_token_ids or ()),
        grammar=wishes.grammar,
    )
