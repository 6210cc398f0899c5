"""What goes into the engine and what comes out of it, one request at a time."""

from dataclasses import dataclass
from typing import NamedTuple

from carpool.engine.sampling_params import SamplingParams
from carpool.scheduling.request import FinishReason


class TokenLogprob(NamedTuple):
    """Log-probability of a chosen token and of its best alternatives, best first."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """A tokenised prompt with its sampling settings.

    `stop` are strings that end the text; the text of a stop string is not returned.
    `person_id` is whose fair share pays for it ("" is a person like any other).
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    stop: tuple[str, ...] = ()
    skip_special_tokens: bool = True
    person_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationDelta:
    """What one step added to a request. The last delta alone has a `finish_reason`.

    `text` never splits a character and never holds any of a stop string, so it may lag
    behind `token_ids`; the last delta brings it level. `error` is set when the finish
    reason is ERROR.
    """

    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    error: str | None = None
