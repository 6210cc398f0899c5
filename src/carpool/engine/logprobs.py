"""Log-probabilities in the two shapes OpenAI has for them."""

from collections.abc import Iterable
from typing import Any

from carpool.engine.generation import TokenLogprob
from carpool.engine.tokenizer import Tokenizer

# JSON has no -Infinity; OpenAI writes this for a token that is as good as impossible.
LOWEST_LOGPROB = -9999.0


def chat_logprobs(
    logprobs: Iterable[TokenLogprob], tokenizer: Tokenizer, num_top: int
) -> list[dict[str, Any]]:
    """One entry per token, with its `num_top` best alternatives."""
    return [
        {
            **_chat_token(entry.token_id, entry.logprob, tokenizer),
            "top_logprobs": [
                _chat_token(token_id, logprob, tokenizer)
                for token_id, logprob in entry.top[:num_top]
            ],
        }
        for entry in logprobs
    ]


def _chat_token(token_id: int, logprob: float, tokenizer: Tokenizer) -> dict[str, Any]:
    raw = tokenizer.token_bytes[token_id]
    return {
        "token": raw.decode("utf-8", "replace"),
        "logprob": max(logprob, LOWEST_LOGPROB),
        "bytes": list(raw),
    }


class CompletionLogprobs:
    """Parallel lists, one entry per token, for the legacy completions API.

    `text_offset` counts characters from the start of the choice's text. The tokens of half a
    character read as U+FFFD, so there the offsets are those of the tokens, not of the text.
    """

    def __init__(self, tokenizer: Tokenizer, num_top: int) -> None:
        self._tokenizer = tokenizer
        self._num_top = num_top
        self._offset = 0

    def prompt(
        self, token_ids: Iterable[int], logprobs: Iterable[TokenLogprob | None]
    ) -> dict[str, list[Any]]:
        """The prompt's tokens; nothing precedes the first one, so it has no logprob."""
        pairs = zip(token_ids, logprobs, strict=True)
        return self._lists([(token_id, entry) for token_id, entry in pairs])

    def output(self, logprobs: Iterable[TokenLogprob]) -> dict[str, list[Any]]:
        return self._lists([(entry.token_id, entry) for entry in logprobs])

    def _lists(self, entries: list[tuple[int, TokenLogprob | None]]) -> dict[str, list[Any]]:
        lists: dict[str, list[Any]] = {
            "text_offset": [],
            "token_logprobs": [],
            "tokens": [],
            "top_logprobs": [],
        }
        for token_id, entry in entries:
            text = self._text(token_id)
            lists["text_offset"].append(self._offset)
            lists["tokens"].append(text)
            lists["token_logprobs"].append(entry and max(entry.logprob, LOWEST_LOGPROB))
            lists["top_logprobs"].append(entry and self._top(entry))
            self._offset += len(text)
        return lists

    def _top(self, entry: TokenLogprob) -> dict[str, float]:
        top = [*entry.top[: self._num_top], (entry.token_id, entry.logprob)]
        texts: dict[str, float] = {}
        for token_id, logprob in sorted(set(top), key=lambda pair: -pair[1]):
            # Two ids can read alike (halves of characters): the likelier one stands for both.
            texts.setdefault(self._text(token_id), max(logprob, LOWEST_LOGPROB))
        return texts

    def _text(self, token_id: int) -> str:
        return self._tokenizer.token_bytes[token_id].decode("utf-8", "replace")


def merged(lists: Iterable[dict[str, list[Any]]]) -> dict[str, list[Any]]:
    """The lists of several pieces of one text, end to end."""
    whole: dict[str, list[Any]] = {
        "text_offset": [],
        "token_logprobs": [],
        "tokens": [],
        "top_logprobs": [],
    }
    for piece in lists:
        for name, values in piece.items():
            whole[name] += values
    return whole
