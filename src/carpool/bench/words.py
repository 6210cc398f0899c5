"""Random text that costs nothing to make while a load runs: slices of one tape of words."""

import random
from functools import lru_cache
from hashlib import blake2b

_TAPE_WORDS = 1 << 15
# Short everyday words, which most tokenizers know as one token each.
_TEXT = """
time year people way day man thing woman life child world school state family student group
country problem hand part place case week company system program question work government number
night point home water room mother area money story fact month lot right study book eye job word
business issue side kind head house service friend father power hour game line end member law
car city name president team minute idea body information back parent face others level office
door health person art war history party result change morning reason research girl guy moment
air teacher force education green blue river mountain garden summer winter market bridge paper
light music window street letter animal island forest engine circle village machine station
figure valley doctor camera planet silver ticket
"""
WORDS = tuple(_TEXT.split())


class Tape:
    """Words by seed. `text` of the same name and length is the same, of another name another
    from its first words on."""

    def __init__(self, seed: str) -> None:
        rng = random.Random(seed)  # noqa: S311
        self._seed = seed
        self._words = rng.choices(WORDS, k=_TAPE_WORDS)

    def text(self, name: str, num_words: int) -> str:
        """Begins with words that are as unlikely to be met again as a 48-bit number."""
        digest = int.from_bytes(blake2b(f"{self._seed}/{name}".encode(), digest_size=8).digest())
        opening = []
        for _ in range(min(num_words, 7)):
            digest, index = divmod(digest, len(WORDS))
            opening.append(WORDS[index])
        start, left = digest % _TAPE_WORDS, num_words - len(opening)
        parts = opening
        while left > 0:
            piece = self._words[start : start + left]
            parts.extend(piece)
            left -= len(piece)
            start = 0
        return " ".join(parts)


@lru_cache(maxsize=4)
def tape_of(seed: str) -> Tape:
    return Tape(seed)
