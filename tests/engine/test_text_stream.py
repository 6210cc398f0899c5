"""Tokens of one request as deltas of text, from the outside."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.engine.core import TokenOutput
from carpool.engine.generation import GenerationRequest, TokenLogprob
from carpool.engine.sampling_params import SamplingParams
from carpool.engine.text_stream import TextStream
from carpool.engine.vocabulary import Vocabulary
from carpool.scheduling.request import FinishReason

EOS = 256
VOCABULARY = Vocabulary((*(bytes([value]) for value in range(256)), b"<eos>"), frozenset({EOS}))


def stream(stop=(), min_tokens=0, stop_token_ids=frozenset(), **fields):
    request = GenerationRequest(
        request_id="r",
        prompt_token_ids=(1, 2, 3),
        sampling=SamplingParams(
            max_tokens=1000, min_tokens=min_tokens, stop_token_ids=stop_token_ids
        ),
        stop=stop,
        **fields,
    )
    return TextStream(request, VOCABULARY)


def feed(text_stream, tokens, finish=FinishReason.LENGTH):
    """Deltas of one token each up to the first with a finish reason."""
    deltas = []
    for place, token in enumerate(tokens):
        reason = finish if place == len(tokens) - 1 else None
        deltas.append(text_stream.add(TokenOutput("r", (token,), finish_reason=reason)))
        if deltas[-1].finish_reason is not None:
            break
    return deltas


def text_of(deltas):
    return "".join(delta.text for delta in deltas)


def test_text_comes_with_its_tokens():
    deltas = feed(stream(), b"abc")
    assert [delta.text for delta in deltas] == ["a", "b", "c"]
    assert [delta.num_output_tokens for delta in deltas] == [1, 2, 3]
    assert [delta.finish_reason for delta in deltas] == [None, None, FinishReason.LENGTH]
    assert {delta.num_prompt_tokens for delta in deltas} == {3}


@given(st.text(max_size=20))
def test_no_character_is_split_and_none_is_lost(text):
    deltas = feed(stream(), text.encode()) if text else []
    assert text_of(deltas) == text
    assert all("\N{REPLACEMENT CHARACTER}" not in d.text or "\ufffd" in text for d in deltas)


def test_a_character_that_never_became_whole_is_marked_at_the_end():
    deltas = feed(stream(), "né".encode()[:-1])
    assert [delta.text for delta in deltas] == ["n", "\N{REPLACEMENT CHARACTER}"]


@given(st.text("ab STOP", max_size=12), st.text("ab STOP", max_size=8))
def test_the_text_ends_before_the_first_stop_string(before, after):
    whole = f"{before}STOP{after}"
    deltas = feed(stream(stop=("STOP",)), whole.encode())
    assert text_of(deltas) == whole[: whole.index("STOP")]
    last = deltas[-1]
    assert (last.finish_reason, last.stop_reason) == (FinishReason.STOP, "STOP")
    assert last.num_output_tokens == whole.index("STOP") + 4


def test_what_only_began_like_a_stop_string_comes_in_the_end():
    deltas = feed(stream(stop=("STOP",)), b"a STO")
    assert text_of(deltas[:-1]) == "a "
    assert deltas[-1].text == "STO"
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == (FinishReason.LENGTH, None)


def test_a_stop_string_in_the_last_token_beats_the_length():
    last = feed(stream(stop=("b",)), b"ab", FinishReason.LENGTH)[-1]
    assert (last.text, last.finish_reason, last.stop_reason) == ("", FinishReason.STOP, "b")


def test_a_stop_string_of_bytes_that_come_one_by_one():
    deltas = feed(stream(stop=("é!",)), "aé!b".encode())
    assert text_of(deltas) == "a"
    assert deltas[-1].stop_reason == "é!"


def test_stop_strings_do_not_end_a_text_before_min_tokens():
    deltas = feed(stream(stop=("x",), min_tokens=3), b"axbxc")
    assert text_of(deltas) == "axb"
    assert deltas[-1].num_output_tokens == 4


@pytest.mark.parametrize(("token", "told"), [(EOS, None), (ord("!"), ord("!"))])
def test_the_token_that_ended_a_text_is_counted_but_not_shown(token, told):
    text_stream = stream(skip_special_tokens=False, stop_token_ids=frozenset({ord("!")}))
    text_stream.add(TokenOutput("r", (ord("a"),)))
    last = text_stream.add(
        TokenOutput("r", (token,), finish_reason=FinishReason.STOP, stop_reason=token)
    )
    assert (last.text, last.token_ids, last.num_output_tokens) == ("", (token,), 2)
    # The end-of-sequence token ends every text; only a token that was asked for is a reason.
    assert last.stop_reason == told


def test_special_tokens_are_shown_if_they_are_asked_for():
    assert text_of(feed(stream(), (ord("a"), EOS, ord("b")))) == "ab"
    shown = feed(stream(skip_special_tokens=False), (ord("a"), EOS, ord("b")))
    assert text_of(shown) == "a<eos>b"


@pytest.mark.parametrize("reason", [FinishReason.ABORT, FinishReason.ERROR])
def test_an_end_without_a_token_brings_the_text_level(reason):
    text_stream = stream(stop=("STOP",))
    for token in b"a ST":
        text_stream.add(TokenOutput("r", (token,)))
    last = text_stream.add(TokenOutput("r", finish_reason=reason, error="broken"))
    assert (last.text, last.finish_reason, last.error) == ("ST", reason, "broken")
    assert last.num_output_tokens == 4


def test_what_else_the_core_says_is_passed_on():
    entry = TokenLogprob(97, -0.5)
    output = TokenOutput("r", (97,), (entry,), (None, entry), num_cached_tokens=2)
    delta = stream().add(output)
    assert (delta.logprobs, delta.prompt_logprobs) == ((entry,), (None, entry))
    assert delta.num_cached_tokens == 2
