"""A first word with an endpoint: which fields it takes, and how many tokens our words are."""

import json
from dataclasses import dataclass, replace

from carpool.bench.errors import BenchError
from carpool.bench.prompts import Prompt, TokenScale
from carpool.bench.record import RequestRecord
from carpool.bench.sender import Sender
from carpool.bench.target import Target
from carpool.bench.words import Tape

TIMEOUT_S = 300.0
SHORT_WORDS, LONG_WORDS = 16, 208
_BAD_FIELD = ("bad_request", "http_4xx")


@dataclass(frozen=True, slots=True)
class Acquaintance:
    """`target` with what it takes; `scale` of prompts made of words; `notes` for people."""

    target: Target
    scale: TokenScale
    notes: tuple[str, ...] = ()


async def get_acquainted(target: Target, salt: str = "") -> Acquaintance:
    """Two or three requests for one token each. Raises BenchError where they are refused."""
    notes = []
    tape = Tape(f"first words/{salt}")
    record = await _ask(target, tape, SHORT_WORDS)
    if record.error in _BAD_FIELD:
        target = replace(target, takes_ignore_eos=False)
        record = await _ask(target, tape, SHORT_WORDS)
        notes.append("the endpoint refuses ignore_eos: answers may be shorter than asked for")
    if record.error in _BAD_FIELD:
        target = replace(target, takes_stream_options=False)
        record = await _ask(target, tape, SHORT_WORDS)
        notes.append("the endpoint refuses stream_options: it is not asked for usage")
    _check(target, record)
    longer = await _ask(target, tape, LONG_WORDS)
    _check(target, longer)
    if record.prompt_tokens is None or longer.prompt_tokens is None:
        notes.append(
            "the endpoint reports no usage: prompts are made for "
            f"{TokenScale().tokens_per_word:g} tokens a word"
        )
        return Acquaintance(target, TokenScale(), tuple(notes))
    return Acquaintance(target, scale_of(record.prompt_tokens, longer.prompt_tokens), tuple(notes))


def scale_of(short_tokens: int, long_tokens: int) -> TokenScale:
    """The line through the tokens of prompts of `SHORT_WORDS` and `LONG_WORDS`."""
    per_word = (long_tokens - short_tokens) / (LONG_WORDS - SHORT_WORDS)
    if per_word <= 0:
        return TokenScale()
    return TokenScale(per_word, max(0.0, short_tokens - per_word * SHORT_WORDS))


async def _ask(target: Target, tape: Tape, num_words: int) -> RequestRecord:
    import time

    sender = Sender(target, TIMEOUT_S)
    text = tape.text(str(num_words), num_words)
    prompt = Prompt(({"role": "user", "content": text},), max_tokens=1, ends_at_eos=False)
    try:
        record, _ = await sender.ask(0, prompt, time.monotonic())
    finally:
        sender.close()
    return record


def _check(target: Target, record: RequestRecord) -> None:
    """An empty answer is one: a token of an answer may be no text yet."""
    match record.error:
        case None | "empty":
            return
        case "unauthorized":
            raise BenchError(
                f"{target.address} refuses the key (status {record.status}: {record.error_text}); "
                "give another by --api-key-file or in CARPOOL_API_KEY"
            )
        case "not_found":
            raise BenchError(
                f"{target.address} has no model {json.dumps(target.model)} or no "
                f"{target.api.path}: {record.error_text}"
            )
        case _:
            raise BenchError(
                f"{target} does not answer a first request: {record.error}: {record.error_text}"
            )
