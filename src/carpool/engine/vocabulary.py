"""What each token id stands for, as bytes, and how ids become text."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_SENTENCEPIECE_SPACE = "▁".encode()
_BYTE_PIECE = re.compile(rb"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The bytes of every token, by token id.

    `strips_leading_space` is the SentencePiece rule: encoding puts a space in front of the
    text, so decoding takes one away. Ids past the end (a model may have more logits than
    tokens) stand for no bytes.
    """

    token_bytes: tuple[bytes, ...]
    special_token_ids: frozenset[int] = frozenset()
    strips_leading_space: bool = False

    def __len__(self) -> int:
        return len(self.token_bytes)

    def bytes_of(self, token_id: int, skip_special_tokens: bool = False) -> bytes:
        if skip_special_tokens and token_id in self.special_token_ids:
            return b""
        return self.token_bytes[token_id] if 0 <= token_id < len(self.token_bytes) else b""

    def decode(self, token_ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Text of `token_ids`; bytes that are not UTF-8 become U+FFFD."""
        data = b"".join(self.bytes_of(token_id, skip_special_tokens) for token_id in token_ids)
        text = data.decode("utf-8", "replace")
        return text.removeprefix(" ") if self.strips_leading_space else text


def vocabulary_from_pieces(
    pieces: Mapping[int, bytes], special_token_ids: frozenset[int], size: int | None = None
) -> Vocabulary:
    """Vocabulary from the pieces a tokeniser stores, which may be SentencePiece's.

    A byte-level vocabulary has its spaces as spaces. A SentencePiece vocabulary writes them
    as U+2581 and single bytes as `<0xXX>`; it is told by having more pieces that begin with
    U+2581 than with a space. `size` pads with ids that stand for no bytes.
    """
    num_marked = sum(piece.startswith(_SENTENCEPIECE_SPACE) for piece in pieces.values())
    num_spaced = sum(piece.startswith(b" ") for piece in pieces.values())
    is_sentencepiece = num_marked > num_spaced
    length = max(max(pieces, default=-1) + 1, size or 0)
    raw = (pieces.get(token_id, b"") for token_id in range(length))
    return Vocabulary(
        tuple(_plain_bytes(piece) for piece in raw) if is_sentencepiece else tuple(raw),
        special_token_ids,
        strips_leading_space=is_sentencepiece,
    )


def _plain_bytes(piece: bytes) -> bytes:
    if match := _BYTE_PIECE.fullmatch(piece):
        return bytes([int(match[1], 16)])
    return piece.replace(_SENTENCEPIECE_SPACE, b" ")
