"""Token ids of text that stands in the middle of a text."""

from collections.abc import Callable

_SENTINEL = "\x02"


class EncodeInside:
    """`encode` without the space that SentencePiece puts in front of a text."""

    def __init__(self, encode: Callable[[str], list[int]]) -> None:
        self._encode = encode
        self._sentinel_ids = encode(_SENTINEL)

    def __call__(self, text: str) -> list[int]:
        token_ids = self._encode(_SENTINEL + text)
        num_sentinels = len(self._sentinel_ids)
        if token_ids[:num_sentinels] == self._sentinel_ids:
            return token_ids[num_sentinels:]
        return self._encode(text)
