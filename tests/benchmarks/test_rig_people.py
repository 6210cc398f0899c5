"""What a flood is credited with, and how small requests are timed."""

import asyncio

import pytest

from benchmarks.rig_connection import connect_to
from benchmarks.rig_engine import MODEL, RigEngine
from benchmarks.rig_people import (
    Person,
    Prompts,
    Refused,
    StreamedAnswer,
    gap_percent,
    served,
)


def whole(due: float, chunks: list[float], prompt: int, output: int) -> StreamedAnswer:
    return StreamedAnswer(due, chunks, prompt, output, is_complete=True)


def test_an_answer_counts_by_the_part_of_it_that_came_in_the_window():
    answer = whole(0.0, [1.0, 2.0, 3.0, 4.0], prompt=100, output=8)
    assert served([answer], 0.0, 10.0).output_tokens == 8
    assert served([answer], 2.0, 4.0).output_tokens == 4
    assert served([answer], 5.0, 6.0).output_tokens == 0


def test_a_prompt_counts_where_its_first_text_came():
    answer = whole(0.0, [1.0, 2.0], prompt=100, output=2)
    assert served([answer], 0.0, 1.5).prompt_tokens == 100
    assert served([answer], 1.5, 3.0).prompt_tokens == 0


def test_windows_side_by_side_lose_nothing_and_count_nothing_twice():
    answers = [whole(i, [i + 0.5 + k / 3 for k in range(7)], 30 + i, 14) for i in range(5)]
    parts = [served(answers, at / 2, at / 2 + 0.5) for at in range(40)]
    assert sum(part.prompt_tokens for part in parts) == sum(a.prompt_tokens for a in answers)
    assert sum(part.output_tokens for part in parts) == pytest.approx(5 * 14)


def test_an_answer_that_was_cut_off_counts_as_the_whole_ones_do():
    known = whole(0.0, [1.0, 2.0], prompt=50, output=4)
    cut = StreamedAnswer(0.0, [1.0, 2.0, 3.0])
    both = served([known, cut], 0.0, 10.0)
    assert (both.prompt_tokens, both.output_tokens) == (100, 10)


def test_service_counts_output_twice_and_speed_counts_both_once():
    got = served([whole(0.0, [1.0], prompt=100, output=10)], 0.0, 4.0)
    assert got.service == 120
    assert got.tok_s == 27.5


def test_an_answer_without_text_counts_nothing_and_has_no_first_token():
    silent = StreamedAnswer(0.0)
    assert served([silent], 0.0, 1.0).service == 0
    assert silent.ttft is None


def test_time_to_first_token_is_from_when_it_was_due():
    assert whole(2.0, [2.5, 3.0], 1, 2).ttft == 0.5


def test_the_gap_is_in_percent_of_the_mean():
    assert gap_percent(105, 95) == 10
    assert gap_percent(0, 0) == 0


def test_no_two_prompts_begin_alike():
    prompts = Prompts(5, seed=1)
    made = [prompts.next() for _ in range(100)]
    assert len({prompt.split()[0] for prompt in made}) == 100
    assert {len(prompt.split()) for prompt in made} == {5}


def person(engine: RigEngine, max_tokens: int = 3) -> Person:
    return Person(connect_to(engine.port), "", MODEL, Prompts(3, 0), max_tokens)


def test_a_flood_keeps_as_many_in_flight_as_it_says():
    async def run():
        async with RigEngine(chunks_per_s=500) as engine:
            flooder = person(engine)
            flood = asyncio.create_task(flooder.flood(8))
            await asyncio.wait([flood], timeout=0.2)
            flood.cancel()
            await asyncio.wait([flood])
            return engine.most_at_once, flooder.answers

    most, answers = asyncio.run(run())
    assert most == 8
    complete = [answer for answer in answers if answer.is_complete]
    # The role comes as a chunk without text, which is not counted.
    assert {len(answer.chunks) for answer in complete[8:]} == {3}
    assert len({len(answer.chunks) for answer in complete[:8]}) > 1
    assert all(answer.prompt_tokens and answer.output_tokens for answer in complete)


def test_small_requests_are_due_on_time_however_slow_the_answers():
    async def run():
        async with RigEngine(chunks_per_s=20) as engine:
            light = person(engine)
            await light.ask_every(0.01, seconds=0.1, grace_s=5)
            return light.answers

    answers = asyncio.run(run())
    dues = [answer.due - answers[0].due for answer in answers]
    assert dues == pytest.approx([number * 0.01 for number in range(10)])
    assert all(answer.is_complete and answer.ttft > 0 for answer in answers)


def test_a_refusal_ends_the_measurement():
    async def run():
        async with RigEngine() as engine:
            light = person(engine)
            engine.drop_connections()
            light._fields["stream"] = False  # a whole answer is no stream with usage
            await light.ask_every(0.01, seconds=0.02, grace_s=5)

    with pytest.raises(ExceptionGroup) as caught:
        asyncio.run(run())
    assert caught.group_contains(Refused)
