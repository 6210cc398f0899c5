"""Constrained output: what may come next is whatever a grammar still allows.

This module compiles grammars against a tokeniser's vocabulary, and masks logits by them.
"""

import time
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from carpool.engine.encode_inside import EncodeInside
from carpool.engine.grammar_compiler import GrammarCompiler, TokenTable
from carpool.engine.grammar_error import GrammarError, sentence

MAX_CPU_S = 0.25
MAX_CPU_PER_TOKEN_S = 0.005
"""On average: everybody else's next token waits that long."""


class GuidedTokenizer(Protocol):
    """What constrained output needs of a tokeniser."""

    @property
    def token_bytes(self) -> Sequence[bytes]: ...
    @property
    def special_token_ids(self) -> frozenset[int]: ...
    @property
    def eos_token_ids(self) -> frozenset[int]: ...
    @property
    def bos_token_id(self) -> int | None: ...
    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]: ...


class GrammarMatcher:
    """Where one output stands in its grammar. Belongs to one request and one thread.

    What it computes is bounded: over `MAX_CPU_S` seconds and `MAX_CPU_PER_TOKEN_S` for each of
    its tokens, it has failed.
    """

    def __init__(self, start: LLMatcher) -> None:
        self._start = start
        self._own: LLMatcher | None = None
        self._cpu_s = 0.0
        self._num_tokens = 0

    @property
    def _matcher(self) -> LLMatcher:
        """A copy of the start, made for the first token: a request that waits has none."""
        if self._own is None:
            self._own = self._start.deep_copy()
        return self._own

    @property
    def is_terminated(self) -> bool:
        """Whether the output is complete: only an end-of-sequence token can follow."""
        return self._matcher.is_stopped() and not self._matcher.is_error()

    def fill_bitmask(self, row: NDArray[np.int32]) -> None:
        """Set in `row` the bits of the tokens that may come next, and clear the others.

        `row` is one row of `GuidanceVocabulary.allocate_bitmask`: bit `i % 32` of word
        `i // 32` stands for token `i`. Raises GrammarError when the grammar's limits are hit.
        """
        if row.dtype != np.int32 or row.ndim != 1 or not row.flags.c_contiguous:
            raise ValueError(f"row must be contiguous int32[words], not {row.dtype}{row.shape}")
        matcher, begun = self._matcher, time.thread_time()
        matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        self._cpu_s += time.thread_time() - begun
        self._raise_error()
        if not row.any():
            raise GrammarError("nothing can follow what it let through")
        if self._cpu_s > MAX_CPU_S + MAX_CPU_PER_TOKEN_S * self._num_tokens:
            raise GrammarError(
                f"it takes {self._cpu_s:.2f} s for {self._num_tokens} tokens; make it simpler"
            )

    def accept(self, token_id: int) -> None:
        """Move on by one token. Raises GrammarError if the grammar does not allow it."""
        self._num_tokens += 1
        if not self._matcher.consume_token(token_id):
            self._raise_error()
            raise GrammarError(f"token {token_id} is not allowed by it here")

    def _raise_error(self) -> None:
        if self._matcher.is_error():
            raise GrammarError(sentence(self._matcher.get_error()))


class GuidanceVocabulary:
    """A tokeniser's vocabulary, arranged for llguidance. Built once; safe to share.

    Raises ValueError if the tokeniser has no end-of-sequence token.
    """

    def __init__(self, tokenizer: GuidedTokenizer) -> None:
        if not tokenizer.eos_token_ids:
            raise ValueError("the tokenizer has no end-of-sequence token, so no grammar can end")
        self.table = TokenTable(
            tuple(tokenizer.token_bytes),
            tuple(sorted(tokenizer.special_token_ids)),
            tuple(sorted(tokenizer.eos_token_ids)),
            tokenizer.bos_token_id,
        )
        self.vocab_size = len(self.table.token_bytes)
        self._compiler = GrammarCompiler(self.table, EncodeInside(tokenizer.encode))

    def allocate_bitmask(self, num_rows: int) -> NDArray[np.int32]:
        """A bitmask int32[num_rows, words] that allows everything."""
        return np.full((num_rows, (self.vocab_size + 31) // 32), -1, dtype=np.int32)

    def compile(self, grammar: str) -> LLMatcher:
        """What `GrammarMatcher`s of `grammar` start from.

        Nothing limits what this takes: `GrammarTrials` says beforehand whether it is little.
        Raises GrammarError if the grammar is malformed or impossible.
        """
        return self._compiler.compile(grammar)

    def matcher(self, grammar: str) -> GrammarMatcher:
        """A matcher at the start of `grammar`. Raises like `compile`."""
        return GrammarMatcher(self.compile(grammar))


def apply_bitmask(
    logits: NDArray[np.floating], bitmask: NDArray[np.int32], rows: Sequence[int] | NDArray[np.intp]
) -> None:
    """Set to -inf, in place, the logits of the tokens that `bitmask` does not allow.

    `logits` is float[B, V]; row `i` of `bitmask`, int32[len(rows), words], is for row
    `rows[i]`. Tokens past the bitmask are not allowed.
    """
    if not len(rows):
        return
    vocab_size = logits.shape[1]
    words = np.ascontiguousarray(bitmask, dtype="<i4").view(np.uint8)
    allowed = np.unpackbits(words, axis=1, bitorder="little", count=vocab_size).view(bool)
    index = np.asarray(rows, dtype=np.intp)
    logits[index] = np.where(allowed, logits[index], -np.inf)
