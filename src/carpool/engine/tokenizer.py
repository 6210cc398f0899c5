"""The tokeniser of a converted model: text to token ids and back."""

import threading
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import openvino
import openvino_genai

from carpool.engine.paged_model import reason
from carpool.engine.vocabulary import Vocabulary, vocabulary_from_pieces
from carpool.errors import CarpoolError
from carpool.models.tokenizer_config import TokenizerConfig as TokenizerFacts

_TOKENIZER = "openvino_tokenizer"
_DETOKENIZER = "openvino_detokenizer"
_INTEGER_BYTES = {"i32": 4, "i64": 8}
_NO_LIMIT = 2**31 - 1


class TokenizerError(CarpoolError):
    """A folder does not hold a tokeniser that can be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerConfig:
    """What a model's metadata says about its tokens.

    `vocab_size` is the width of the model's logits, where that is more than the tokeniser's
    own vocabulary.
    """

    special_token_ids: frozenset[int] = frozenset()
    eos_token_ids: frozenset[int] = frozenset()
    bos_token_id: int | None = None
    add_bos: bool = False
    chat_template: str | None = None
    bos_token: str = ""
    eos_token: str = ""
    vocab_size: int | None = None

    @classmethod
    def from_facts(cls, facts: TokenizerFacts, vocab_size: int | None = None) -> "TokenizerConfig":
        """From what a model's files say (`ResolvedModel.tokenizer`)."""
        return cls(
            special_token_ids=frozenset(facts.special_token_ids),
            eos_token_ids=frozenset(facts.eos_token_ids),
            bos_token_id=facts.bos_token_id,
            add_bos=facts.add_bos_token,
            chat_template=facts.chat_template,
            bos_token=facts.bos_token or "",
            eos_token=facts.eos_token or "",
            vocab_size=vocab_size,
        )


class Tokenizer:
    """Encodes with OpenVINO's tokeniser, decodes by the bytes of the tokens.

    Decoding does not call OpenVINO: its detokeniser drops bytes that are not UTF-8, and a
    text cut inside a character would differ from the stream of the same tokens.
    Safe to use from several threads.

    Raises TokenizerError when `folder` has no `openvino_tokenizer.xml` / `.bin` and
    `openvino_detokenizer.xml` / `.bin`, or when they are broken.
    """

    def __init__(self, folder: Path, config: TokenizerConfig) -> None:
        self.config = config
        self._lock = threading.Lock()
        self._backend = _load_backend(folder)
        self.vocabulary = _read_vocabulary(self._backend, config)

    @property
    def token_bytes(self) -> Sequence[bytes]:
        return self.vocabulary.token_bytes

    @property
    def vocab_size(self) -> int:
        return len(self.vocabulary)

    @property
    def special_token_ids(self) -> frozenset[int]:
        return self.config.special_token_ids

    @property
    def eos_token_ids(self) -> frozenset[int]:
        return self.config.eos_token_ids

    @property
    def bos_token_id(self) -> int | None:
        return self.config.bos_token_id

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """Token ids of `text`, never truncated.

        `add_special_tokens` puts the BOS token in front if the model wants one and the text
        does not begin with it. Special tokens written in the text are recognised.
        """
        with self._lock:
            encoded = self._backend.encode(_well_formed(text), add_special_tokens=False)
            token_ids: list[int] = encoded.input_ids.data.reshape(-1).tolist()
        bos = self.config.bos_token_id
        if (
            add_special_tokens
            and self.config.add_bos
            and bos is not None
            and token_ids[:1] != [bos]
        ):
            return [bos, *token_ids]
        return token_ids

    def decode(self, token_ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        return self.vocabulary.decode(token_ids, skip_special_tokens)

    def token_text(self, token_id: int) -> str:
        """One token as text, its spaces kept; half a character reads as U+FFFD."""
        return self.vocabulary.bytes_of(token_id).decode("utf-8", "replace")


def _well_formed(text: str) -> str:
    """`text` with lone surrogates, which JSON can carry and UTF-8 cannot, as U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _load_backend(folder: Path) -> openvino_genai.Tokenizer:
    files = [
        folder / f"{name}{end}" for name in (_TOKENIZER, _DETOKENIZER) for end in (".xml", ".bin")
    ]
    for file in files:
        if not file.is_file():
            raise TokenizerError(f"{file} is missing; convert the model again to write it")
    try:
        xml, weights = files[0].read_text(encoding="utf-8"), bytearray(files[1].read_bytes())
        _lift_truncation(xml, weights)
        return openvino_genai.Tokenizer(
            xml,
            _as_tensor(weights),
            files[2].read_text(encoding="utf-8"),
            _as_tensor(files[3].read_bytes()),
        )
    except (RuntimeError, ET.ParseError, UnicodeDecodeError) as error:
        raise TokenizerError(
            f"{folder}: its tokeniser cannot be loaded: {reason(error)}; convert the model again"
        ) from error


def _as_tensor(data: bytes | bytearray) -> openvino.Tensor:
    return openvino.Tensor(np.frombuffer(bytes(data), dtype=np.uint8))


def _lift_truncation(xml: str, weights: bytearray) -> None:
    """Raise the length at which a converted tokeniser silently cuts its input.

    The length is a scalar constant under a Minimum, baked in at conversion; whether a prompt
    is too long is for the server to say.
    """
    net = ET.fromstring(xml)  # noqa: S314 - a file of the model folder, like the model itself
    layers = {layer.get("id"): layer for layer in net.iter("layer")}
    for edge in net.iter("edge"):
        source, target = layers[edge.get("from-layer")], layers[edge.get("to-layer")]
        data = source.find("data")
        if source.get("type") != "Const" or target.get("type") != "Minimum" or data is None:
            continue
        num_bytes = _INTEGER_BYTES.get(data.get("element_type", ""))
        if num_bytes is None or int(data.get("size", 0)) != num_bytes:
            continue
        offset = int(data.get("offset", 0))
        weights[offset : offset + num_bytes] = _NO_LIMIT.to_bytes(num_bytes, "little")


def _read_vocabulary(backend: openvino_genai.Tokenizer, config: TokenizerConfig) -> Vocabulary:
    pieces = {token_id: piece for piece, token_id in backend.get_vocab().items()}
    if not pieces:
        raise TokenizerError("the tokeniser's vocabulary is empty; convert the model again")
    # Two ids with the same bytes share one entry of get_vocab().
    for token_id in set(range(max(pieces) + 1)) - pieces.keys():
        pieces[token_id] = backend.decode([token_id], skip_special_tokens=False).encode()
    return vocabulary_from_pieces(pieces, config.special_token_ids, config.vocab_size)
