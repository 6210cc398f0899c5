"""llguidance's compiler: a grammar's text to a matcher, within limits.

The engine and the processes that try a grammar out first (`grammar_trial`) use it alike. The
latter fork, so nothing here may start threads by being imported, as numpy does.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from carpool.engine.grammar_error import NO_TEXT, GrammarError, sentence

# llguidance's recursion follows the grammar's own depth and overflows a usual stack. 16 KiB
# for every level that MAX_GRAMMAR_CHARS has room for; only the part used is ever resident.
COMPILER_STACK_BYTES = 256 * 1024 * 1024

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TokenTable:
    """The bytes of every token, and which tokens are special. There is at least one end."""

    token_bytes: tuple[bytes, ...]
    special_token_ids: tuple[int, ...]
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None


class GrammarCompiler:
    """Compiles grammars for one vocabulary; `encode` makes token ids of text."""

    def __init__(self, table: TokenTable, encode: Callable[[str], list[int]]) -> None:
        self._tokenizer = LLTokenizer(
            TokenizerWrapper(_TokenizerView(table, encode)),
            n_vocab=len(table.token_bytes),
            eos_token=sorted(table.eos_token_ids),
        )
        self._limits = LLParserLimits(
            # An object of 1,000 optional properties has 4,000 items in a row.
            max_items_in_row=20_000,
            initial_lexer_fuel=200_000,
            step_lexer_fuel=100_000,
            step_max_items=100_000,
            max_lexer_states=50_000,
            max_grammar_size=100_000,
            precompute_large_lexemes=False,
            verbose_errors=False,
        )

    def compile(self, grammar: str) -> LLMatcher:
        """A matcher that has its first mask ready, which its copies begin with.

        Raises GrammarError if the grammar is malformed or impossible, or too costly.
        """
        return _on_deep_stack(lambda: self._compile(grammar))

    def _compile(self, grammar: str) -> LLMatcher:
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=self._limits)
        if matcher.is_error():
            raise GrammarError(sentence(matcher.get_error()))
        # Grammars that derive nothing, or cost too much, show it at the first mask.
        mask = matcher.compute_bitmask()
        if matcher.is_error():
            raise GrammarError(sentence(matcher.get_error()))
        if not any(mask):
            raise GrammarError(NO_TEXT)
        return matcher


class _TokenizerView:
    """A tokeniser under the names llguidance looks for."""

    def __init__(self, table: TokenTable, encode: Callable[[str], list[int]]) -> None:
        self.eos_token_id = min(table.eos_token_ids)
        self.bos_token_id = table.bos_token_id
        self.tokens = list(table.token_bytes)
        self.special_token_ids = list(table.special_token_ids)
        self._encode = encode

    def __call__(self, text: str | bytes) -> list[int]:
        if isinstance(text, bytes):
            raise TypeError("text only")
        return self._encode(text)


def _on_deep_stack(function: Callable[[], T]) -> T:
    """Result of `function`, run in a thread with a stack for deep recursion."""
    results: list[T] = []
    errors: list[GrammarError] = []

    def run() -> None:
        try:
            results.append(function())
        except GrammarError as error:
            errors.append(error)

    with _STACK_SIZE_LOCK:
        usual = threading.stack_size(COMPILER_STACK_BYTES)
        try:
            thread = threading.Thread(target=run, name="grammar-compiler")
            thread.start()
        finally:
            threading.stack_size(usual)
    thread.join()
    if not results:
        raise errors[0] if errors else GrammarError("the grammar could not be compiled")
    return results[0]


_STACK_SIZE_LOCK = threading.Lock()
