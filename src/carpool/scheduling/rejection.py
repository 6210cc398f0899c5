"""Requests that can never run are refused when they come, with both numbers."""

from enum import StrEnum
from typing import NoReturn

from carpool.scheduling.config import SchedulerConfig
from carpool.scheduling.request import Request


class RejectReason(StrEnum):
    DUPLICATE_ID = "duplicate_id"
    EMPTY_PROMPT = "empty_prompt"
    INVALID_LIMITS = "invalid_limits"
    EXCEEDS_MAX_MODEL_LEN = "exceeds_max_model_len"
    EXCEEDS_KV_CACHE = "exceeds_kv_cache"
    EXCEEDS_PERSON_CAP = "exceeds_person_cap"


class RequestRejected(ValueError):
    """The scheduler will not take this request; `reason` is for metrics, the text for people."""

    def __init__(self, reason: RejectReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


def reject_if_impossible(request: Request, config: SchedulerConfig) -> None:
    """Raise RequestRejected if `request` could not run even alone.

    It needs prompt + max_tokens positions of the context, but one KV slot less: the last
    token that is sampled is never fed back.
    """
    prompt, max_tokens = request.num_prompt_tokens, request.max_tokens
    if prompt == 0:
        _reject(RejectReason.EMPTY_PROMPT, "the prompt is empty; it needs at least one token")
    if max_tokens < 1 or not 0 <= request.min_tokens <= max_tokens:
        _reject(
            RejectReason.INVALID_LIMITS,
            f"max_tokens is {max_tokens} and min_tokens {request.min_tokens}; "
            f"need max_tokens >= 1 and 0 <= min_tokens <= max_tokens",
        )
    asked = f"prompt ({prompt} tokens) + max_tokens ({max_tokens})"
    if prompt + max_tokens > config.max_model_len:
        _reject(
            RejectReason.EXCEEDS_MAX_MODEL_LEN,
            f"{asked} is {prompt + max_tokens} tokens, but the context holds "
            f"{config.max_model_len} (max_model_len); {_advice(prompt, config.max_model_len)}",
        )
    if request.max_kv_tokens > config.kv_tokens:
        _reject(
            RejectReason.EXCEEDS_KV_CACHE,
            f"{asked} needs {request.max_kv_tokens} KV slots, but the KV cache has "
            f"{config.kv_tokens}; {_advice(prompt, config.kv_tokens + 1)}",
        )
    cap = config.max_blocks_per_person
    if cap is not None and config.num_blocks_for(request.max_kv_tokens) > cap:
        slots = cap * config.block_size
        _reject(
            RejectReason.EXCEEDS_PERSON_CAP,
            f"{asked} needs {request.max_kv_tokens} KV slots, but one person may hold {slots} "
            f"({cap} blocks of {config.block_size}); {_advice(prompt, slots + 1)}",
        )


def _advice(prompt: int, limit: int) -> str:
    if prompt < limit:
        return f"shorten the prompt or set max_tokens to at most {limit - prompt}"
    return f"shorten the prompt to fewer than {limit} tokens"


def _reject(reason: RejectReason, message: str) -> NoReturn:
    raise RequestRejected(reason, message)
