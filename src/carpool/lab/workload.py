"""Made-up requests: many short ones and some long ones among them."""

import random
from dataclasses import dataclass

LONG_EVERY = 4
"""One request of this many is a long one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Least and most tokens of the prompts and answers of short and long requests."""

    short_prompt: tuple[int, int] = (32, 96)
    short_output: tuple[int, int] = (8, 32)
    long_prompt: tuple[int, int] = (128, 256)
    long_output: tuple[int, int] = (96, 128)


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticRequest:
    """`num_output_tokens` is where its answer ends, `max_tokens` what it asks room for: nobody
    knows the length of an answer beforehand."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    num_output_tokens: int
    max_tokens: int
    is_short: bool = True


def mixed_workload(
    seed: int,
    num_requests: int,
    token_ids: range,
    lengths: Lengths,
    max_tokens: int | None = None,
) -> list[SyntheticRequest]:
    """Requests with random lengths and tokens; the same for the same arguments.

    One of each `LONG_EVERY` in a row is long, at a random place among them. Lengths are
    uniform in their ranges, tokens in `token_ids`, and no two prompts begin with the same
    token, so none has a prefix to share. `max_tokens` is what all ask for; None: exactly what
    they need. Raises ValueError if `token_ids` are fewer than the requests.
    """
    rng = random.Random(seed)  # noqa: S311
    first_tokens = rng.sample(token_ids, num_requests)
    long_ones = {start + rng.randrange(LONG_EVERY) for start in range(0, num_requests, LONG_EVERY)}
    return [
        _request(rng, number, first_token, number not in long_ones, token_ids, lengths, max_tokens)
        for number, first_token in enumerate(first_tokens)
    ]


def _request(
    rng: random.Random,
    number: int,
    first_token: int,
    is_short: bool,
    token_ids: range,
    lengths: Lengths,
    max_tokens: int | None,
) -> SyntheticRequest:
    num_prompt_tokens = rng.randint(*(lengths.short_prompt if is_short else lengths.long_prompt))
    num_output_tokens = rng.randint(*(lengths.short_output if is_short else lengths.long_output))
    return SyntheticRequest(
        request_id=f"request-{number}",
        prompt_token_ids=(first_token, *rng.choices(token_ids, k=num_prompt_tokens - 1)),
        num_output_tokens=num_output_tokens,
        max_tokens=num_output_tokens if max_tokens is None else max_tokens,
        is_short=is_short,
    )
