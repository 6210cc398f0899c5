"""Stop strings end the text wherever they fall, and no part of one is ever given out."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from carpool.engine.stop_strings import StopStringMatcher


def run(stops: list[str], parts: list[str]) -> tuple[str, str | None]:
    matcher = StopStringMatcher(stops)
    text = "".join(matcher.feed(part) for part in parts)
    return text + matcher.finish(), matcher.matched


def reference(stops: list[str], text: str) -> tuple[str, str | None]:
    """The first prefix of `text` that ends with a stop string, the longest such string."""
    for end in range(1, len(text) + 1):
        if ending := [stop for stop in stops if text[:end].endswith(stop)]:
            stop = max(ending, key=len)
            return text[: end - len(stop)], stop
    return text, None


letters = st.text("ab", max_size=12)


@given(st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4), letters, letters)
@example(["abcd", "bc"], "ab", "c")
@example(["aab"], "aa", "ab")
def test_every_split_gives_the_text_before_the_first_stop_string(stops, head, tail):
    expected = reference(stops, head + tail)
    assert run(stops, [head, tail]) == expected
    assert run(stops, list(head + tail)) == expected


@pytest.mark.parametrize("cut", range(len("a STOP b") + 1))
def test_a_stop_string_cut_in_two_does_not_leak(cut):
    text = "a STOP b"
    assert run(["STOP"], [text[:cut], text[cut:]]) == ("a ", "STOP")


def test_only_what_may_become_a_stop_string_is_held_back():
    matcher = StopStringMatcher(["STOP"])
    assert matcher.feed("one ST") == "one "
    assert matcher.feed("EP") == "STEP"
    assert matcher.feed(" S") == " "
    assert matcher.finish() == "S"
    assert matcher.matched is None


def test_nothing_follows_a_stop_string():
    matcher = StopStringMatcher(["."])
    assert matcher.feed("End. More") == "End"
    assert matcher.feed("and more") == ""
    assert matcher.finish() == ""


def test_without_stop_strings_text_passes_at_once():
    assert StopStringMatcher([]).feed("text") == "text"


def test_an_empty_stop_string_is_refused():
    with pytest.raises(ValueError, match="at least one character"):
        StopStringMatcher(["x", ""])


def test_a_long_stop_string_costs_no_more_per_character():
    stop = "a" * 20_000 + "b"
    text = "a" * 60_000
    matcher = StopStringMatcher([stop])
    assert len(matcher.feed(text)) == 40_000
    assert len(matcher.finish()) == 20_000
