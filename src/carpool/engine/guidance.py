"""Constrained output: what may come next is whatever a grammar still allows.

Grammars are llguidance's, as text; this module builds them, compiles them against a
tokeniser's vocabulary, and masks logits by them.
"""

import functools
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, Protocol, TypeVar

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from carpool.engine.grammar_size import lark_size, regex_size
from carpool.engine.tool_calls import ToolCallStyle

MAX_GRAMMAR_CHARS = 64 * 1024
# Compiling regular expressions takes time that grows with the square of their length.
MAX_PATTERN_CHARS = 8 * 1024
MAX_MULTIPLE = 10_000
# Text that is repeated a fixed number of times is written out: 0.4 KiB for each character.
MAX_EXPANDED_CHARS = 100_000
_MAX_MESSAGE_CHARS = 400
_MAX_COMPILED = 16
# Small models get lost in white space, so there is an end to it; anyOf stands in for oneOf.
_JSON_OPTIONS = {"whitespace_pattern": r"[ \n\t]{0,32}", "coerce_one_of": True}
# llguidance's recursion follows the grammar's own depth and overflows a usual stack. 16 KiB
# for every level that MAX_GRAMMAR_CHARS has room for; only the part used is ever resident.
_COMPILER_STACK_BYTES = 256 * 1024 * 1024
_NO_PARAMETERS = {"properties": {}, "additionalProperties": False}
_SENTINEL = "\x02"

T = TypeVar("T")


class GrammarError(ValueError):
    """A grammar cannot be used: malformed, impossible, or too large or costly."""


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


def json_schema_grammar(schema: Mapping[str, Any]) -> str:
    """Grammar of the JSON that fits `schema`. Raises GrammarError if it is no JSON object."""
    return f"start: %json {_schema_text(schema)}\n"


def json_object_grammar() -> str:
    """Grammar of any JSON object."""
    return json_schema_grammar({"type": "object"})


def regex_grammar(pattern: str) -> str:
    """Grammar of the text that `pattern` (Rust syntax: no look-around) matches as a whole.

    Raises GrammarError for a pattern of more than MAX_PATTERN_CHARS, or of more than
    MAX_EXPANDED_CHARS with its repetitions written out.
    """
    _check_source("the regular expression", pattern)
    _check_expanded("the regular expression", regex_size(pattern))
    return str(LLMatcher.grammar_from_regex(pattern))


def lark_grammar(text: str) -> str:
    """Grammar written in llguidance's variant of Lark.

    Raises GrammarError for a grammar of more than MAX_PATTERN_CHARS, or of more
    than MAX_EXPANDED_CHARS with its repetitions and references to terminals written out.
    """
    _check_source("the Lark grammar", text)
    if not text.strip():
        raise GrammarError("Empty grammar; give at least a start rule")
    _check_expanded("the Lark grammar", lark_size(text))
    for match in re.finditer(r"%json\s*", text):
        _check_schema(_json_at(text, match.end()))
    # Given as it is, text that begins with a brace would be read as another kind of grammar.
    return json.dumps({"grammars": [{"lark_grammar": text}]})


def choice_grammar(choices: Sequence[str]) -> str:
    """Grammar of exactly one of `choices`. Raises GrammarError if there are none."""
    if not choices:
        raise GrammarError("choice: the list is empty; give at least one string")
    # A terminal: as a rule, more than 2,000 of them are too many for the parser.
    return "start: CHOICE\nCHOICE: " + " | ".join(_literal(choice) for choice in choices) + "\n"


def tool_call_grammar(
    tools: Sequence[Mapping[str, Any]],
    style: ToolCallStyle,
    name: str | None = None,
    *,
    is_parallel: bool = True,
) -> str:
    """Grammar of valid calls of `tools` (OpenAI's list) in `style`, and nothing else.

    Any tool may be called, more than once if `is_parallel`; with `name` that function is
    called once. Raises GrammarError if there is no such tool.
    """
    functions = [tool["function"] for tool in tools]
    if name is not None:
        functions = [function for function in functions if function["name"] == name]
    if not functions:
        raise GrammarError(f"tool_choice: no tool is named {name!r}" if name else "tools: empty")
    separator = "\n" if style is ToolCallStyle.HERMES else "; "
    repeats = f" ({_literal(separator)} call)*" if is_parallel and name is None else ""
    rules = [
        f"start: call{repeats}",
        "call: " + " | ".join(f"call_{i}" for i in range(len(functions))),
    ]
    for index, function in enumerate(functions):
        rules += _tool_rules(index, function, style)
    return "\n".join(rules) + "\n"


def _tool_rules(index: int, function: Mapping[str, Any], style: ToolCallStyle) -> list[str]:
    quoted = json.dumps(function["name"], ensure_ascii=False)
    if style is ToolCallStyle.HERMES:
        opening, closing = f'<tool_call>\n{{"name": {quoted}, "arguments": ', "}\n</tool_call>"
    else:
        opening, closing = f'{{"name": {quoted}, "parameters": ', "}"
    schema = {"type": "object", **(function.get("parameters") or _NO_PARAMETERS)}
    return [
        f"call_{index}: {_literal(opening)} arguments_{index} {_literal(closing)}",
        f"arguments_{index}: %json {_schema_text(schema)}",
    ]


def _literal(text: str) -> str:
    """`text` as a Lark string, which takes JSON's escapes and no control characters."""
    return json.dumps(text)


def _json_at(text: str, start: int) -> Any:
    try:
        return json.JSONDecoder().raw_decode(text, start)[0]
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"%json: the schema is not JSON: {error}") from error


def _schema_text(schema: Mapping[str, Any]) -> str:
    if not isinstance(schema, Mapping):
        raise GrammarError(f"the schema must be a JSON object, not {schema!r:.80}")
    try:
        text = json.dumps({**schema, "x-guidance": _JSON_OPTIONS}, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise GrammarError(f"the schema is not JSON: {error}") from error
    _check_length("the schema", len(text), MAX_GRAMMAR_CHARS)
    _check_schema(schema)
    return text


def _check_schema(schema: Any) -> None:
    """Raises GrammarError for what would take too long to compile, or too much memory."""
    num_chars = num_expanded = 0
    for node in _objects_in(schema):
        by_pattern = node.get("patternProperties")
        patterns = [node.get("pattern"), *(by_pattern if isinstance(by_pattern, Mapping) else ())]
        for pattern in patterns:
            if not isinstance(pattern, str):
                continue
            num_chars += len(pattern)
            _check_length("the schema's patterns", num_chars, MAX_PATTERN_CHARS)
            num_expanded += regex_size(pattern)
    _check_expanded("the schema's patterns", num_expanded)
    _check_multiples(schema)


def _check_multiples(schema: Any) -> None:
    """An automaton that divides by N has N states, and by several numbers their product."""
    product = 1
    for node in _objects_in(schema):
        value = node.get("multipleOf")
        if isinstance(value, int | float) and not isinstance(value, bool):
            product *= _without_point(Decimal(str(value)))
        if product > MAX_MULTIPLE:
            raise GrammarError(
                f"multipleOf: the numbers of a schema, without their decimal point and multiplied, "
                f"are {product:,}; at most {MAX_MULTIPLE:,} is taken"
            )


def _without_point(value: Decimal) -> int:
    """25 for 2.5, and 1000 for 1000; past the limit, whatever is past it."""
    _, digits, exponent = value.normalize().as_tuple()
    if not isinstance(exponent, int) or len(digits) + exponent > 20 or len(digits) > 20:
        return MAX_MULTIPLE + 1
    return max(1, int("".join(map(str, digits)) + "0" * max(exponent, 0)))


def _objects_in(schema: Any) -> Iterator[Mapping[str, Any]]:
    rest: list[Any] = [schema]
    while rest:
        node = rest.pop()
        if isinstance(node, Mapping):
            yield node
            rest.extend(node.values())
        elif isinstance(node, list):
            rest.extend(node)


def _check_source(what: str, text: str) -> None:
    _check_length(what, len(text), MAX_PATTERN_CHARS)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise GrammarError(f"{what} is not Unicode text: {error.reason}") from error


def _check_length(what: str, length: int, limit: int) -> None:
    if length > limit:
        raise GrammarError(f"{what}: {length} characters; at most {limit} are taken")


def _check_expanded(what: str, size: int) -> None:
    if size > MAX_EXPANDED_CHARS:
        raise GrammarError(
            f"{what}: {size:,} characters with all repetitions written out; "
            f"at most {MAX_EXPANDED_CHARS:,} are taken"
        )


class GrammarMatcher:
    """Where one output stands in its grammar. Belongs to one request and one thread."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

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
        self._matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        self._raise_error()

    def accept(self, token_id: int) -> None:
        """Move on by one token. Raises GrammarError if the grammar does not allow it."""
        if not self._matcher.consume_token(token_id):
            self._raise_error()
            raise GrammarError(f"token {token_id} is not allowed by the grammar here")

    def _raise_error(self) -> None:
        if self._matcher.is_error():
            raise GrammarError(_message(self._matcher.get_error()))


class GuidanceVocabulary:
    """A tokeniser's vocabulary, arranged for llguidance. Built once; safe to share.

    Raises ValueError if the tokeniser has no end-of-sequence token.
    """

    def __init__(self, tokenizer: GuidedTokenizer) -> None:
        self.vocab_size = len(tokenizer.token_bytes)
        if not tokenizer.eos_token_ids:
            raise ValueError("the tokenizer has no end-of-sequence token, so no grammar can end")
        self._tokenizer = LLTokenizer(
            TokenizerWrapper(_TokenizerView(tokenizer)),
            n_vocab=self.vocab_size,
            eos_token=sorted(tokenizer.eos_token_ids),
        )
        self._limits = LLParserLimits(
            initial_lexer_fuel=200_000,
            step_lexer_fuel=100_000,
            max_lexer_states=50_000,
            max_grammar_size=100_000,
            precompute_large_lexemes=False,
            verbose_errors=False,
        )
        self._compiled = functools.lru_cache(_MAX_COMPILED)(self._compile)

    def allocate_bitmask(self, num_rows: int) -> NDArray[np.int32]:
        """A bitmask int32[num_rows, words] that allows everything."""
        return np.full((num_rows, (self.vocab_size + 31) // 32), -1, dtype=np.int32)

    def validate(self, grammar: str) -> None:
        """Compile `grammar`, and keep it for `matcher`. Can take a second: not for a step loop.

        Raises GrammarError if it is malformed or impossible, or too large or costly.
        """
        self._compiled(grammar)

    def matcher(self, grammar: str) -> GrammarMatcher:
        """A matcher at the start of `grammar`. Raises GrammarError like `validate`."""
        return GrammarMatcher(self._compiled(grammar).deep_copy())

    def _compile(self, grammar: str) -> LLMatcher:
        _check_length("the grammar", len(grammar), MAX_GRAMMAR_CHARS)
        return _on_deep_stack(lambda: self._compile_and_probe(grammar))

    def _compile_and_probe(self, grammar: str) -> LLMatcher:
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=self._limits)
        if matcher.is_error():
            raise GrammarError(_message(matcher.get_error()))
        # Grammars that derive nothing, or cost too much, show it at the first mask.
        first = self.allocate_bitmask(1)
        try:
            GrammarMatcher(matcher.deep_copy()).fill_bitmask(first[0])
        except GrammarError as error:
            raise GrammarError(f"no text can match the grammar: {error}") from error
        if not first.any():
            raise GrammarError("no text can match the grammar")
        return matcher


class _TokenizerView:
    """A tokeniser under the names llguidance looks for."""

    def __init__(self, tokenizer: GuidedTokenizer) -> None:
        self.eos_token_id = min(tokenizer.eos_token_ids)
        self.bos_token_id = tokenizer.bos_token_id
        self.tokens = list(tokenizer.token_bytes)
        self.special_token_ids = sorted(tokenizer.special_token_ids)
        self._encode = tokenizer.encode
        self._sentinel_ids = tokenizer.encode(_SENTINEL)

    def __call__(self, text: str | bytes) -> list[int]:
        """Token ids of text in the middle of a text, so without SentencePiece's first space."""
        if isinstance(text, bytes):
            raise TypeError("text only")
        token_ids = self._encode(_SENTINEL + text)
        num_sentinels = len(self._sentinel_ids)
        if token_ids[:num_sentinels] == self._sentinel_ids:
            return token_ids[num_sentinels:]
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
        usual = threading.stack_size(_COMPILER_STACK_BYTES)
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


def _message(error: str) -> str:
    text = " ".join(error.replace("<non-verbose/>", "").split())
    return text if len(text) <= _MAX_MESSAGE_CHARS else text[:_MAX_MESSAGE_CHARS] + "..."


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
