"""Constrained output: only what a grammar allows, and bad grammars are refused in words."""

import json
import time
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.engine.grammar_error import GrammarError
from carpool.engine.grammars import (
    MAX_GRAMMAR_CHARS,
    MAX_PATTERN_CHARS,
    choice_grammar,
    json_object_grammar,
    json_schema_grammar,
    lark_grammar,
    regex_grammar,
    tool_call_grammar,
)
from carpool.engine.guidance import GuidanceVocabulary, apply_bitmask
from carpool.engine.tokenizer import Tokenizer
from carpool.engine.tool_calls import ToolCallParser, ToolCallStart, ToolCallStyle

EOS = 256


class ByteTokenizer:
    """One token per byte, then the end of the sequence and one id without bytes."""

    token_bytes = (*(bytes([value]) for value in range(256)), b"<eos>", b"")
    special_token_ids = frozenset({EOS})
    eos_token_ids = frozenset({EOS})
    bos_token_id = None

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return list(text.encode())


class SpacingTokenizer(ByteTokenizer):
    """Puts a space in front of every text, as SentencePiece does."""

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return list(f" {text}".encode())


@pytest.fixture(scope="module")
def vocabulary() -> GuidanceVocabulary:
    return GuidanceVocabulary(ByteTokenizer())


def allowed_ids(vocabulary: GuidanceVocabulary, matcher) -> set[int]:
    bitmask = vocabulary.allocate_bitmask(1)
    matcher.fill_bitmask(bitmask[0])
    logits = np.zeros((1, vocabulary.vocab_size), np.float32)
    apply_bitmask(logits, bitmask, [0])
    return set(np.flatnonzero(np.isfinite(logits[0])).tolist())


def accepts(vocabulary: GuidanceVocabulary, grammar: str, text: str) -> bool:
    """Whether `text` is a whole output of `grammar`, by masks and by accepting alike."""
    matcher = vocabulary.matcher(grammar)
    for token_id in text.encode():
        if token_id not in allowed_ids(vocabulary, matcher):
            with pytest.raises(GrammarError):
                matcher.accept(token_id)
            return False
        matcher.accept(token_id)
    return EOS in allowed_ids(vocabulary, matcher)


PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("grammar", "yes", "no"),
    [
        (json_schema_grammar(PERSON), '{"name": "Ada", "age": 36}', '{"name": "Ada"}'),
        (json_schema_grammar(PERSON), '{"name":"é","age":1}', '{"name": "Ada", "age": -1}'),
        (json_object_grammar(), '{"a": [1, {"b": null}]}', "[1]"),
        (json_object_grammar(), '{\n  "a": 1\n}', '{"a": 1'),
        (json_object_grammar(), "{}", "{" + " " * 33 + "}"),
        (json_schema_grammar({"oneOf": [{"type": "null"}, {"type": "integer"}]}), "12", "true"),
        (regex_grammar("[0-9]{3}-(a|b)/"), "123-a/", "12-a/"),
        (lark_grammar('start: "a" b\nb: "b" b | "c"'), "abbbc", "abb"),
        (choice_grammar(["yes", "no"]), "no", "nope"),
    ],
)
def test_outputs_are_what_the_grammar_says(vocabulary, grammar, yes, no):
    vocabulary.compile(grammar)
    assert accepts(vocabulary, grammar, yes)
    assert not accepts(vocabulary, grammar, no)


@given(choices=st.lists(st.text(max_size=6), min_size=1, max_size=4))
def test_any_strings_can_be_choices(vocabulary, choices):
    grammar = choice_grammar(choices)
    assert all(accepts(vocabulary, grammar, choice) for choice in choices)


def test_a_finished_output_says_so(vocabulary):
    matcher = vocabulary.matcher(regex_grammar("ab"))
    for token_id in b"ab":
        assert not matcher.is_terminated
        matcher.accept(token_id)
    assert matcher.is_terminated
    assert allowed_ids(vocabulary, matcher) == {EOS}


def test_matchers_of_one_grammar_do_not_share_their_state(vocabulary):
    grammar = regex_grammar("ab")
    first, second = vocabulary.matcher(grammar), vocabulary.matcher(grammar)
    first.accept(ord("a"))
    assert allowed_ids(vocabulary, first) == {ord("b")}
    assert allowed_ids(vocabulary, second) == {ord("a")}


def test_a_token_that_is_not_allowed_is_an_error_of_that_matcher_alone(vocabulary):
    grammar = regex_grammar("ab")
    broken, healthy = vocabulary.matcher(grammar), vocabulary.matcher(grammar)
    with pytest.raises(GrammarError, match="the grammar"):
        broken.accept(ord("x"))
    with pytest.raises(GrammarError):
        broken.fill_bitmask(vocabulary.allocate_bitmask(1)[0])
    assert not broken.is_terminated
    healthy.accept(ord("a"))


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"properties": {"foo": "bar"}}, "schema must be an object or boolean"),
        ({"type": "frob"}, "Invalid type: frob"),
        (
            {"type": "integer", "minimum": 5, "maximum": 3},
            "no JSON can satisfy the schema: minimum (5) is greater than maximum (3)",
        ),
        ({"allOf": [{"type": "string"}, {"type": "null"}]}, "no JSON can satisfy the schema"),
        ({"enum": []}, "no JSON can satisfy the schema"),
        (
            {"type": "object", "required": ["a"], "properties": {"a": False}},
            "no JSON can satisfy the schema: required property 'a' is unsatisfiable",
        ),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, "no text can match it"),
        ({"$ref": "#/nope"}, "the schema refers to #/nope, which does not exist"),
        ({"$ref": "http://x.y/z"}, "the schema refers to http://x.y/z, outside of itself"),
        ({"type": "string", "pattern": "("}, "unclosed group in a regular expression"),
        ({"type": "string", "pattern": "(?=a)"}, "look-around, including"),
        (
            {"type": "array", "uniqueItems": True},
            'the schema uses "uniqueItems", which is not supported',
        ),
        ({"minimum": "x"}, 'minimum in the schema must be a number, not "x"'),
    ],
)
def test_bad_and_impossible_schemas_are_refused_in_a_sentence(vocabulary, schema, message):
    with pytest.raises(GrammarError) as caught:
        vocabulary.compile(json_schema_grammar(schema))
    said = str(caught.value)
    assert message in said
    assert len(said) < 200
    for internal in ("%json", "x-guidance", "^", "\n", "compile", "start:", "verbose"):
        assert internal not in said


def nested(depth: int) -> dict:
    schema: dict = {}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: json_schema_grammar([1]), "must be a JSON object"),
        (lambda: json_schema_grammar({"const": float("nan")}), "not JSON"),
        (lambda: json_schema_grammar({"const": object()}), "not JSON"),
        (lambda: json_schema_grammar({"title": "a" * 70_000}), f"{MAX_GRAMMAR_CHARS:,}"),
        (lambda: json_schema_grammar(nested(500)), "nested too deeply"),
        (lambda: json_schema_grammar(nested(100_000)), "not JSON|recursion|at most"),
        (lambda: regex_grammar("("), "unclosed group"),
        (lambda: json_schema_grammar({"items": {"pattern": "a" * 9000}}), f"{MAX_PATTERN_CHARS:,}"),
        (lambda: json_schema_grammar({"patternProperties": {"a" * 9000: {}}}), "patterns: 9,000"),
        (lambda: regex_grammar("a" * 9000), "9,000 characters; at most 8,192"),
        (lambda: regex_grammar("\ud800"), "not Unicode text"),
        (lambda: lark_grammar('start: "\ud800"'), "not Unicode text"),
        (lambda: choice_grammar(["\ud800"]), "not Unicode text"),
        (lambda: regex_grammar("(" * 3000 + ")" * 3000), "nested too deeply|regular expression"),
        (lambda: lark_grammar("start: nothing"), "unknown name: .nothing. .line 1, column 8.$"),
        (lambda: lark_grammar(""), "the grammar is empty"),
        (lambda: lark_grammar("start: start"), "no text can match it"),
        (lambda: lark_grammar("start: " + "(" * 4000 + '"a"' + ")" * 4000), "nested too deeply"),
        (lambda: choice_grammar([]), "empty"),
    ],
)
def test_bad_and_costly_grammars_are_refused(vocabulary, build: Callable[[], str], message):
    with pytest.raises(GrammarError, match=message) as caught:
        vocabulary.compile(build())
    assert len(str(caught.value)) < 500


def test_a_long_chain_of_references_does_not_overflow_the_stack(vocabulary):
    num_links = 1500
    links = {str(i): {"items": {"$ref": f"#/$defs/{i + 1}"}} for i in range(num_links)}
    schema = {"$ref": "#/$defs/0", "$defs": links | {str(num_links): {"type": "null"}}}
    vocabulary.compile(json_schema_grammar(schema))


def test_a_refused_grammar_leaves_running_outputs_alone(vocabulary):
    running = vocabulary.matcher(regex_grammar("abc"))
    running.accept(ord("a"))
    with pytest.raises(GrammarError):
        vocabulary.compile(json_schema_grammar({"properties": {"foo": "bar"}}))
    running.accept(ord("b"))
    assert allowed_ids(vocabulary, running) == {ord("c")}


def test_a_tokenizer_that_puts_spaces_in_front_does_not_change_forced_text():
    vocabulary = GuidanceVocabulary(SpacingTokenizer())
    assert accepts(vocabulary, choice_grammar(["yes", "no"]), "yes")


def test_a_tokenizer_without_an_end_is_refused():
    class Endless(ByteTokenizer):
        eos_token_ids: frozenset[int] = frozenset()

    with pytest.raises(ValueError, match="no end-of-sequence token"):
        GuidanceVocabulary(Endless())


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"$ref": "#/$defs/city"}},
                "required": ["city"],
                "additionalProperties": False,
                "$defs": {"city": {"enum": ["Oslo", "서울"]}},
            },
        },
    },
    {"type": "function", "function": {"name": 'o"clock'}},
]
CALLS = {
    ToolCallStyle.HERMES: (
        '<tool_call>\n{"name": "weather", "arguments": {"city": "서울"}}\n</tool_call>',
        '<tool_call>\n{"name": "o\\"clock", "arguments": {}}\n</tool_call>',
        "\n",
    ),
    ToolCallStyle.LLAMA3: (
        '{"name": "weather", "parameters": {"city": "서울"}}',
        '{"name": "o\\"clock", "parameters": {}}',
        "; ",
    ),
}


@pytest.mark.parametrize("style", ToolCallStyle)
def test_forced_tool_calls_are_valid_and_can_be_parsed_back(vocabulary, style):
    weather, clock, separator = CALLS[style]
    any_tool = tool_call_grammar(TOOLS, style)
    assert accepts(vocabulary, any_tool, weather)
    assert accepts(vocabulary, any_tool, clock + separator + weather)
    assert not accepts(vocabulary, any_tool, "Hello")
    assert not accepts(vocabulary, any_tool, weather.replace("서울", "Rome"))
    parser = ToolCallParser(style, lambda: "x")
    events = parser.feed(clock + separator + weather) + parser.finish()
    starts = [event.name for event in events if isinstance(event, ToolCallStart)]
    assert starts == ['o"clock', "weather"]


@pytest.mark.parametrize("style", ToolCallStyle)
def test_a_named_function_is_called_once(vocabulary, style):
    weather, clock, separator = CALLS[style]
    named = tool_call_grammar(TOOLS, style, "weather")
    assert accepts(vocabulary, named, weather)
    assert not accepts(vocabulary, named, clock)
    assert not accepts(vocabulary, named, weather + separator + weather)
    single = tool_call_grammar(TOOLS, style, is_parallel=False)
    assert not accepts(vocabulary, single, weather + separator + weather)
    with pytest.raises(GrammarError, match="no tool is named 'fly'"):
        tool_call_grammar(TOOLS, style, "fly")


@given(data=st.data(), vocab_size=st.integers(1, 100))
def test_masking_equals_the_bit_by_bit_rule(data, vocab_size):
    num_words = data.draw(st.integers(1, 4))
    rows = data.draw(st.lists(st.integers(0, 4), unique=True, max_size=5))
    words = st.lists(st.integers(-(2**31), 2**31 - 1), min_size=num_words, max_size=num_words)
    bitmask = np.array([data.draw(words) for _ in rows], np.int32).reshape(len(rows), num_words)
    logits = np.arange(5 * vocab_size, dtype=np.float32).reshape(5, vocab_size)
    expected = logits.copy()
    for index, row in enumerate(rows):
        for token_id in range(vocab_size):
            word = int(bitmask[index, token_id // 32]) if token_id < 32 * num_words else 0
            if not word >> (token_id % 32) & 1:
                expected[row, token_id] = -np.inf
    apply_bitmask(logits, bitmask, rows)
    np.testing.assert_array_equal(logits, expected)


@pytest.mark.parametrize("row", [np.zeros(9, np.int64), np.zeros((1, 9), np.int32)])
def test_a_row_of_the_wrong_kind_is_refused(vocabulary, row):
    with pytest.raises(ValueError, match="row must be contiguous int32"):
        vocabulary.matcher(json_object_grammar()).fill_bitmask(row)


@pytest.mark.model
def test_a_pattern_that_costs_too_much_is_refused(demo_tokenizer: Tokenizer):
    with pytest.raises(GrammarError, match="too complex"):
        GuidanceVocabulary(demo_tokenizer).compile(regex_grammar("a?" * 1500))


@pytest.mark.model
def test_random_choices_among_real_tokens_make_valid_json(demo_tokenizer: Tokenizer):
    vocabulary = GuidanceVocabulary(demo_tokenizer)
    schema = PERSON | {
        "properties": {"name": {"type": "string", "maxLength": 9}, "age": {"enum": [1]}}
    }
    rng = np.random.default_rng(7)
    for _ in range(5):
        matcher = vocabulary.matcher(json_schema_grammar(schema))
        token_ids: list[int] = []
        while not matcher.is_terminated:
            allowed = sorted(allowed_ids(vocabulary, matcher))
            token_ids.append(int(rng.choice(allowed)))
            matcher.accept(token_ids[-1])
        person = json.loads(demo_tokenizer.decode(token_ids))
        assert len(person["name"]) <= 9
        assert person["age"] == 1


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "multipleOf": 1_000_003},
        {"type": "number", "multipleOf": 0.12345678},
        {"type": "number", "multipleOf": 1e20},
        {"type": "integer", "multipleOf": 10**9},
        {"allOf": [{"type": "integer", "multipleOf": 997}, {"multipleOf": 991}]},
    ],
)
def test_multiples_whose_automaton_would_fill_the_memory_are_refused(schema: dict) -> None:
    with pytest.raises(GrammarError, match="multipleOf"):
        json_schema_grammar(schema)


@pytest.mark.parametrize("multiple", [0.01, 5, 5.0, 2.5, 1000])
def test_usual_multiples_are_taken(multiple: float) -> None:
    json_schema_grammar({"type": "number", "multipleOf": multiple})


def doubling(num_levels: int) -> str:
    levels = "\n".join(f"A{i}: A{i - 1} A{i - 1}" for i in range(1, num_levels + 1))
    return f'start: A{num_levels}\n{levels}\nA0: "x"\n'


@pytest.mark.parametrize(
    "build",
    [
        lambda: regex_grammar("a{1000000000}"),
        lambda: regex_grammar("a{99999999999999999999999999}"),
        lambda: regex_grammar("a{5000000,}"),
        lambda: regex_grammar("(a{3}){2000000}"),
        lambda: regex_grammar("((((a{100}){100}){100}){100})"),
        lambda: regex_grammar("(a{1000})+{1000}"),
        lambda: regex_grammar("(x[[b](]a{1000}){1000}"),
        lambda: regex_grammar("(?x)((a{ 1000 }) #(\n ){1000}"),
        lambda: regex_grammar("(" * 700 + "a" + "){999999}" * 700),
        lambda: json_schema_grammar({"items": {"pattern": "^a{10000000}$"}}),
        lambda: json_schema_grammar({"patternProperties": {"^a{10000000}$": {}}}),
        lambda: lark_grammar("start: /a{10000000}/"),
        lambda: lark_grammar('start: A\nA: "a"{10000000}'),
        lambda: lark_grammar('start: A\nA: B{3000}\nB: C ~ 3000\nC: "a"'),
        lambda: lark_grammar(doubling(30)),
        lambda: lark_grammar("start: A\n" + "".join(f"A{i}: /a{{40000{i}}}/\n" for i in range(9))),
        lambda: lark_grammar('start: %json {"pattern": "a\\u007b10000000}"}'),
    ],
)
def test_repetitions_that_would_fill_the_memory_are_refused(build: Callable[[], str]) -> None:
    with pytest.raises(GrammarError, match="repetitions written out; at most 20,000") as caught:
        build()
    assert len(str(caught.value)) < 500


def test_a_schema_inside_a_lark_grammar_is_checked_like_any_other() -> None:
    with pytest.raises(GrammarError, match="multipleOf"):
        lark_grammar('start: %json {"type": "integer", "multipleOf": 1000003}')


def test_thousands_of_choices_work(vocabulary) -> None:
    grammar = choice_grammar([str(number) for number in range(5000)])
    for text in ("7", "49", "4999"):
        assert accepts(vocabulary, grammar, text)
    assert not accepts(vocabulary, grammar, "5000")


def test_lark_text_is_not_read_as_another_kind_of_grammar(vocabulary) -> None:
    hidden = json.dumps({"grammars": [{"json_schema": {"type": "null"}}]})
    with pytest.raises(GrammarError):
        vocabulary.compile(lark_grammar(hidden))


@pytest.mark.parametrize(
    ("grammar", "text"),
    [
        (regex_grammar(r"(\d{1,3}\.){3}\d{1,3}"), "127.0.0.1"),
        (
            regex_grammar(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"),
            f"{'0' * 8}{'-0000' * 3}-{'f' * 12}",
        ),
        (regex_grammar("(ab{2}){1,1000000}"), "abbabb"),
        (regex_grammar("[[a-c](]{3}"), "(a("),
        (lark_grammar('start: A+\nA: B B\nB: "x"{2} | /[0-9]{4}/'), "xx2026"),
        (
            lark_grammar(
                "start: U | T\nU: /[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}/\n"
                r"T: /\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(Z|[+-]\d{2}:\d{2})/"
            ),
            "2026-01-01T00:00:00Z",
        ),
    ],
)
def test_usual_repetitions_are_taken(vocabulary, grammar: str, text: str) -> None:
    assert accepts(vocabulary, grammar, text)


class SlowTokenizer(ByteTokenizer):
    """Takes 50 ms of processor time for a text that is forced."""

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        end = time.thread_time() + 0.05 * (len(text) > 20)
        while time.thread_time() < end:
            pass
        return super().encode(text)


def test_a_grammar_that_holds_everybody_up_has_failed():
    matcher = GuidanceVocabulary(SlowTokenizer()).matcher(lark_grammar(f'start: "{"x" * 100}"'))
    row = np.zeros(9, np.int32)

    def write() -> None:
        for _ in range(60):
            matcher.fill_bitmask(row)
            matcher.accept(ord("x"))

    with pytest.raises(GrammarError, match=r"s for [0-9]+ tokens; make it simpler"):
        write()
