"""What is asked: conversations made up to given lengths, or taken from a file."""

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, Protocol, Self

from carpool.bench.errors import BenchError
from carpool.bench.words import Tape, tape_of

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Prompt:
    """`messages` of a chat; the completions API gets their texts, joined. `max_tokens` bounds
    the answer, `ends_at_eos` False asks for exactly so many. `extra` fields go into the body."""

    messages: tuple[Message, ...]
    max_tokens: int
    ends_at_eos: bool = True
    extra: Mapping[str, Any] = field(default_factory=dict)


class Session(Protocol):
    """One conversation."""

    def next(self, answer: str | None) -> Prompt | None:
        """The next turn, after `answer` to the one before it (None at first); None: it is over."""


class PromptSource(Protocol):
    """Conversations by their number. `is_shared`: every run is to ask the very same."""

    @property
    def is_shared(self) -> bool: ...

    @property
    def is_multi_turn(self) -> bool: ...

    def salted(self, salt: str) -> "PromptSource":
        """Another one, no prompt of which begins like one of this one's."""

    def session(self, number: int) -> Session | None:
        """None: there are no more."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens: `mean`, and a log-normal spread with `spread` times the mean as its standard
    deviation; 0: all alike."""

    mean: int
    spread: float = 0.0

    def __post_init__(self) -> None:
        if self.mean < 1 or not 0 <= self.spread <= 10:
            raise BenchError(
                f"lengths of {self.mean} tokens with a spread of {self.spread:g} are none; give 1 "
                "or more tokens and a spread from 0 to 10"
            )

    def sample(self, rng: random.Random) -> int:
        if not self.spread:
            return self.mean
        # Of a log-normal: sigma^2 = ln(1 + cv^2), mu = ln(mean) - sigma^2 / 2.
        sigma_squared = math.log1p(self.spread**2)
        mu = math.log(self.mean) - sigma_squared / 2
        return max(1, round(rng.lognormvariate(mu, math.sqrt(sigma_squared))))


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a request: tokens of its prompt and answer. Prompts whose `blocks` begin alike begin
    with the same text, `block_tokens` for each block."""

    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenScale:
    """A prompt of w words in m messages is w * `tokens_per_word` + `overhead` tokens."""

    tokens_per_word: float = 1.3
    overhead: float = 0.0

    def words(self, tokens: int) -> int:
        return max(1, round((tokens - self.overhead) / self.tokens_per_word))


@dataclass(frozen=True)
class MadeUpPrompts:
    """Random words in the lengths of `shapes`, or sampled from `lengths` (prompt, answer)
    without an end. `system_tokens` are the same for all; `num_turns` more than 1: each turn adds
    a prompt of its own to what was said before."""

    shapes: Sequence[Shape] = ()
    lengths: tuple[Lengths, Lengths] | None = None
    scale: TokenScale = TokenScale()
    system_tokens: int = 0
    num_turns: int = 1
    seed: int = 0
    ends_at_eos: bool = False
    block_tokens: int = 512
    salt: str = ""
    is_shared: bool = False
    is_cyclic: bool = False

    @property
    def is_multi_turn(self) -> bool:
        return self.num_turns > 1

    @property
    def tape(self) -> Tape:
        return tape_of(f"{self.salt}/{self.seed}")

    def salted(self, salt: str) -> Self:
        return replace(self, salt=salt)

    def shape(self, number: int) -> Shape | None:
        if self.lengths is not None:
            rng = random.Random(f"{self.seed}/{number}")  # noqa: S311
            return Shape(self.lengths[0].sample(rng), self.lengths[1].sample(rng))
        if self.is_cyclic and self.shapes:
            return self.shapes[number % len(self.shapes)]
        return self.shapes[number] if number < len(self.shapes) else None

    def session(self, number: int) -> Session | None:
        shape = self.shape(number)
        return None if shape is None else _MadeUpSession(self, shape, number)

    def system_text(self) -> str:
        return self.tape.text("system", round(self.system_tokens / self.scale.tokens_per_word))

    def user_text(self, shape: Shape, number: int, turn: int) -> str:
        tokens = shape.input_tokens - (self.system_tokens if turn == 0 else 0)
        num_words = self.scale.words(max(1, tokens))
        if not shape.blocks or turn:
            return self.tape.text(f"{number}.{turn}", num_words)
        per_block = max(1, round(self.block_tokens / self.scale.tokens_per_word))
        parts, left = [], num_words
        for block in shape.blocks:
            if left <= 0:
                break
            parts.append(self.tape.text(f"block {block}", min(left, per_block)))
            left -= per_block
        if left > 0:
            parts.append(self.tape.text(f"{number}.{turn}", left))
        return " ".join(parts)


class _MadeUpSession:
    def __init__(self, source: MadeUpPrompts, shape: Shape, number: int) -> None:
        self._source = source
        self._shape = shape
        self._number = number
        self._turn = 0
        self._messages: list[Message] = []

    def next(self, answer: str | None) -> Prompt | None:
        source, turn = self._source, self._turn
        if turn >= source.num_turns:
            return None
        if turn == 0 and source.system_tokens:
            self._messages.append({"role": "system", "content": source.system_text()})
        if turn:
            self._messages.append({"role": "assistant", "content": answer or ""})
        text = source.user_text(self._shape, self._number, turn)
        self._messages.append({"role": "user", "content": text})
        self._turn += 1
        return Prompt(
            tuple(self._messages), self._shape.output_tokens, ends_at_eos=source.ends_at_eos
        )


@dataclass(frozen=True)
class GivenPrompts:
    """Conversations from a file, one after the other, from the start again if `is_cyclic`.

    Each is the turns of its users, with what else comes before a turn (a system message, or the
    answer that was given at the time); where that is missing, the server's answer is quoted.
    """

    conversations: Sequence["Conversation"]
    max_tokens: int
    ends_at_eos: bool = True
    salt: str = ""
    is_shared: bool = False
    is_cyclic: bool = True
    num_turns: int = 1

    @property
    def is_multi_turn(self) -> bool:
        return self.num_turns > 1

    def salted(self, salt: str) -> Self:
        return replace(self, salt=salt)

    def session(self, number: int) -> Session | None:
        if not self.is_cyclic and number >= len(self.conversations):
            return None
        conversation = self.conversations[number % len(self.conversations)]
        return _GivenSession(self, conversation, number)


@dataclass(frozen=True, slots=True)
class Conversation:
    """`turns`: the messages that each turn adds, the user's last. `max_tokens` None: the
    source's. `extra` fields of the request's body, such as tools."""

    turns: tuple[tuple[Message, ...], ...]
    max_tokens: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


class _GivenSession:
    def __init__(self, source: GivenPrompts, conversation: Conversation, number: int) -> None:
        self._source = source
        self._conversation = conversation
        self._number = number
        self._turns: Iterator[tuple[Message, ...]] = iter(conversation.turns[: source.num_turns])
        self._messages: list[Message] = []

    def next(self, answer: str | None) -> Prompt | None:
        turn = next(self._turns, None)
        if turn is None:
            return None
        if not self._messages and self._source.salt:
            turn = _with_salt(turn, f"{self._source.salt}-{self._number}")
        elif self._messages and turn[0].get("role") != "assistant":
            self._messages.append({"role": "assistant", "content": answer or ""})
        self._messages.extend(turn)
        conversation, source = self._conversation, self._source
        return Prompt(
            tuple(self._messages),
            conversation.max_tokens or source.max_tokens,
            ends_at_eos=source.ends_at_eos,
            extra=conversation.extra,
        )


def _with_salt(turn: tuple[Message, ...], salt: str) -> tuple[Message, ...]:
    """A tag before the first text, so that no engine has its prefix in a cache."""
    tag = blake2b(salt.encode(), digest_size=6).hexdigest()
    first, *others = turn
    content = first.get("content")
    if isinstance(content, list):
        salted: Any = [{"type": "text", "text": f"[{tag}]"}, *content]
    else:
        salted = f"[{tag}] {content or ''}"
    return ({**first, "content": salted}, *others)
