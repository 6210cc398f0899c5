"""Text from tokens as they come, a token at a time."""

import codecs

from carpool.engine.vocabulary import Vocabulary


class IncrementalDetokenizer:
    """Turns token ids into text deltas; a character is given out once it is whole.

    The deltas, `finish()` included, concatenate to `Vocabulary.decode` of all ids. Each
    token costs its own bytes, however long the text is. `strip_leading_space=False` keeps
    the first space of a SentencePiece text, for text that continues a prompt.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        skip_special_tokens: bool = True,
        strip_leading_space: bool = True,
    ) -> None:
        self._vocabulary = vocabulary
        self._skip_special_tokens = skip_special_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._is_at_strippable_start = strip_leading_space and vocabulary.strips_leading_space

    def add(self, token_id: int) -> str:
        data = self._vocabulary.bytes_of(token_id, self._skip_special_tokens)
        return self._strip_start(self._decoder.decode(data))

    def finish(self) -> str:
        """The rest: U+FFFD if the last character never became whole, else nothing."""
        return self._strip_start(self._decoder.decode(b"", final=True))

    def _strip_start(self, text: str) -> str:
        if not text or not self._is_at_strippable_start:
            return text
        self._is_at_strippable_start = False
        return text.removeprefix(" ")
