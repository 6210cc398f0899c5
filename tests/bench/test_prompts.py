"""What is asked: lengths, salt, conversations."""

from itertools import combinations, takewhile

import pytest

from carpool.bench.errors import BenchError
from carpool.bench.prompts import (
    Conversation,
    GivenPrompts,
    Lengths,
    MadeUpPrompts,
    Shape,
    TokenScale,
)

SCALE = TokenScale(tokens_per_word=1.0, overhead=8.0)


def texts(source, numbers=range(20)) -> list[str]:
    return [source.session(number).next(None).messages[-1]["content"] for number in numbers]


def num_common_words(first: str, second: str) -> int:
    pairs = zip(first.split(), second.split(), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def made_up(**changes) -> MadeUpPrompts:
    fields = {"lengths": (Lengths(100), Lengths(10)), "scale": SCALE, "seed": 7, **changes}
    return MadeUpPrompts(**fields)


def test_prompts_have_the_tokens_asked_for():
    prompt = made_up().session(0).next(None)
    assert len(prompt.messages[0]["content"].split()) == 92  # the template takes 8
    assert prompt.max_tokens == 10
    assert not prompt.ends_at_eos


def test_with_one_seed_no_two_runs_share_the_beginning_of_a_prompt():
    """Else the prefix cache of the last run answers this one."""
    runs = [made_up().salted(salt) for salt in ("run 1", "run 2")]
    found = [text for run in runs for text in texts(run)]
    shared = [num_common_words(*pair) for pair in combinations(found, 2)]
    assert max(shared) <= 3


def test_a_run_can_be_repeated():
    assert texts(made_up().salted("a")) == texts(made_up().salted("a"))


def test_a_system_prompt_is_shared_within_a_run_only():
    source = made_up(system_tokens=40).salted("a")
    first, second = (source.session(number).next(None).messages for number in (0, 1))
    assert first[0] == second[0]
    assert len(first[0]["content"].split()) == 40
    assert first[0] != made_up(system_tokens=40).salted("b").session(0).next(None).messages[0]


def test_lengths_are_spread_around_their_mean():
    source = made_up(lengths=(Lengths(500, 0.5), Lengths(50)))
    lengths = [source.shape(number).input_tokens for number in range(3000)]
    assert sum(lengths) / len(lengths) == pytest.approx(500, rel=0.05)
    assert len(set(lengths)) > 300


def test_turns_of_a_conversation_quote_what_was_answered():
    session = made_up(num_turns=3).session(0)
    assert len(session.next(None).messages) == 1
    second = session.next("Fine").messages
    assert [each["role"] for each in second] == ["user", "assistant", "user"]
    assert second[1]["content"] == "Fine"
    assert len(session.next("Well").messages) == 5
    assert session.next("End") is None


def test_blocks_in_common_are_text_in_common():
    shapes = [Shape(1000, 5, (1, 2)), Shape(1000, 5, (1, 3)), Shape(1000, 5, (4, 2))]
    source = MadeUpPrompts(shapes=shapes, scale=SCALE, block_tokens=400).salted("a")
    first, second, third = texts(source, range(3))
    assert num_common_words(first, second) >= 400
    assert num_common_words(first, third) <= 3
    assert source.session(3) is None


def test_given_prompts_are_salted_unless_shared():
    source = GivenPrompts([Conversation((({"role": "user", "content": "Why?"},),))], max_tokens=9)
    first, second = texts(source.salted("a"), range(2))
    assert first != second
    assert first.endswith("Why?")
    assert texts(source, range(2)) == ["Why?", "Why?"]


def test_given_conversations_keep_their_own_answers_and_quote_the_missing():
    user, other = {"role": "user", "content": "1"}, {"role": "user", "content": "2"}
    own = {"role": "assistant", "content": "own"}
    source = GivenPrompts(
        [Conversation(((user,), (own, other))), Conversation(((user,), (other,)))],
        max_tokens=9,
        num_turns=2,
    )
    recorded, quoted = source.session(0), source.session(1)
    recorded.next(None), quoted.next(None)
    assert recorded.next("new").messages == (user, own, other)
    assert quoted.next("new").messages == (user, {"role": "assistant", "content": "new"}, other)


def test_lengths_that_are_none():
    with pytest.raises(BenchError, match="1 or more"):
        Lengths(0)
