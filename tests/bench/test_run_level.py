"""Levels of load against an engine whose answers and faults are written down."""

import asyncio
import threading
import time

import pytest
from mock_engine import (
    DONE,
    MockEngine,
    Reply,
    SeenRequest,
    answer,
    chat_events,
    event,
    json_reply,
    serving,
    sse_reply,
)

from carpool.bench.arrivals import constant
from carpool.bench.dialect import get_acquainted
from carpool.bench.errors import BenchError
from carpool.bench.level import Level, Limits, Slo
from carpool.bench.level_result import LevelResult
from carpool.bench.load import ClosedLoop, FixedConcurrency, Load, OpenLoop
from carpool.bench.loop import run
from carpool.bench.prompts import Conversation, GivenPrompts, Lengths, MadeUpPrompts
from carpool.bench.run_level import run_level
from carpool.bench.target import Api, find_target

PROMPTS = MadeUpPrompts(lengths=(Lengths(20), Lengths(5)))
LAX = 1e6
"""Milliseconds of lag that make nobody doubt: this machine may be busy."""


def level(load: Load, *, max_lag_ms: float = LAX, **changes) -> Level:
    limits = changes.pop("limits", Limits(max_requests=10))
    return Level("a level", load, limits, max_lag_ms=max_lag_ms, **changes)


def measured(script, asked: Level, prompts=PROMPTS, **options) -> tuple[LevelResult, MockEngine]:
    with serving(script) as engine:

        async def measure():
            return await run_level(await find_target(engine.url), asked, prompts, **options)

        return run(measure()), engine


def posts(engine: MockEngine) -> list[SeenRequest]:
    return [request for request in engine.requests if request.method == "POST"]


# ------------------------------------------------------------------------ what is measured


def test_a_fixed_concurrency_is_held_and_never_passed():
    result, engine = measured(answer, level(FixedConcurrency(3), limits=Limits(max_requests=30)))
    assert engine.most_posts == 3
    assert (result.num_requests, result.num_failed, result.ended_by) == (30, 0, "max_requests")
    assert result.ttft_ms.count == 30
    assert result.output_tokens_per_s > 0
    assert all(record.output_tokens == 5 for record in result.records)


def test_there_is_no_limit_to_connections():
    """Nobody is answered before all 200 are there: a pool of 100 would wait for ever."""
    released = threading.Event()

    def script(request):
        if request.method == "GET":
            return answer(request)
        if len(seen) == 199:
            released.set()
        seen.append(request)
        return sse_reply(chat_events(["a"]), stall_after=0, released=released)

    seen: list[SeenRequest] = []
    asked = level(FixedConcurrency(200), limits=Limits(max_requests=200))
    result, _ = measured(script, asked)
    assert (result.num_requests, result.num_failed) == (200, 0)


def test_the_clock_of_an_open_loop_starts_when_a_request_is_due():
    """The server takes one request at a time and is silent for half a second: all who were
    due meanwhile waited, though their requests were sent on time."""
    begun = []

    def script(request):
        if request.method == "POST":
            begun.append(time.monotonic())
            if len(begun) == 1:
                time.sleep(0.5)  # the whole server stands still
        return answer(request)

    result, _ = measured(script, level(constant(40, 1.0), limits=Limits()))
    waited = [record for record in result.records if record.ttft_ms > 200]
    assert result.num_requests == 40
    assert len(waited) >= 10
    assert result.ttft_ms.p99.value > 400


def test_an_open_loop_sends_whether_or_not_others_are_answered():
    released = threading.Event()

    def script(request):
        if request.method == "GET":
            return answer(request)
        if len(posted) == 19:
            released.set()
        posted.append(request)
        return sse_reply(chat_events(["a"]), stall_after=0, released=released)

    posted: list[SeenRequest] = []
    result, engine = measured(script, level(OpenLoop([0.0] * 20), limits=Limits()))
    assert (result.num_ok, engine.most_posts, result.ended_by) == (20, 20, "arrivals")


def test_what_was_due_in_ramp_and_warm_up_is_not_counted():
    load = FixedConcurrency(8, ramp_s=0.2)
    asked = level(load, warm_up_s=0.2, limits=Limits(max_requests=20))
    result, engine = measured(answer, asked)
    assert result.num_warm_up > 0
    assert result.num_requests + result.num_warm_up == len(posts(engine))
    assert min(record.due for record in result.records) >= result.begin


def test_streams_begin_spread_over_the_ramp():
    """A burst of first prompts queues up at the engine, and no later moment is like it."""
    asked = level(FixedConcurrency(10, ramp_s=0.5), limits=Limits(max_requests=5))
    released = threading.Event()

    def script(request):
        if request.method == "GET":
            return answer(request)
        posted.append(request)
        if len(posted) == 10:
            released.set()
        return sse_reply(chat_events(["a"]), stall_after=0, released=released)

    posted: list[SeenRequest] = []
    result, _ = measured(script, asked)
    started = result.begin - 0.5
    for number, request in enumerate(posted[:10]):  # none is early, however busy we are
        assert request.at >= started + 0.05 * number


def test_people_think_between_their_requests():
    asked = level(ClosedLoop(2, think_s=0.05), limits=Limits(max_requests=6))
    result, engine = measured(answer, asked)
    assert result.num_requests == 6
    assert engine.most_posts <= 2


def test_conversations_quote_what_was_answered():
    prompts = MadeUpPrompts(lengths=(Lengths(20), Lengths(2)), num_turns=3)
    _, engine = measured(answer, level(FixedConcurrency(1), limits=Limits(max_requests=3)), prompts)
    messages = [request.json["messages"] for request in posts(engine)]
    assert [len(each) for each in messages] == [1, 3, 5]
    assert messages[2][3] == {"role": "assistant", "content": "word word "}


def test_prompts_differ_between_runs_of_one_seed_unless_shared():
    def sent(source):
        _, engine = measured(
            answer, level(FixedConcurrency(1), limits=Limits(max_requests=2)), source
        )
        return {request.json["messages"][0]["content"][:30] for request in posts(engine)}

    shared = GivenPrompts(
        [Conversation((({"role": "user", "content": "Always the same"},),))], 5, is_shared=True
    )
    assert not sent(PROMPTS) & sent(PROMPTS)
    assert sent(shared) == sent(shared)


def test_queue_time_is_told_from_what_follows():
    headers = (("content-type", "text/event-stream"), ("x-carpool-queue-ms", "7"))

    def script(request):
        if request.method == "GET":
            return answer(request)
        return Reply(headers=headers, pieces=tuple(chat_events(["a", "b"])), piece_delay=0.01)

    result, _ = measured(script, level(FixedConcurrency(1)))
    assert result.queue_ms.p50.value == 7
    for record in result.records:
        assert record.admitted_ttft_ms == pytest.approx(max(0, record.ttft_ms - 7))


def test_the_engines_own_figures_are_read_before_and_after():
    def script(request):
        if request.path != "/metrics":
            return answer(request)
        looks.append(request)
        text = f"carpool_num_preemptions_total {3 * len(looks)}\ncarpool_kv_cache_usage_ratio 0.5\n"
        return Reply(pieces=(text.encode(),))

    looks: list[SeenRequest] = []
    result, _ = measured(script, level(FixedConcurrency(1)))
    assert result.engine.preemptions == 3 * (len(looks) - 1)
    assert result.engine.max_kv_usage == 0.5


# ----------------------------------------------------------------------------- bounds


def test_tokens_are_bounded_before_they_are_asked_for():
    limits = Limits(max_seconds=30, max_tokens=23)
    result, engine = measured(answer, level(FixedConcurrency(2), limits=limits))
    assert result.ended_by == "max_tokens"
    assert len(posts(engine)) == 4  # of 5 tokens each


def test_seconds_are_bounded_and_what_is_in_flight_is_waited_for():
    limits = Limits(max_seconds=0.3)
    result, _ = measured(answer, level(FixedConcurrency(2), limits=limits))
    assert result.ended_by == "max_seconds"
    assert result.num_failed == 0
    assert max(record.due for record in result.records) <= result.end


def test_what_never_ends_is_a_failure_after_the_drain():
    def script(request):
        if request.method == "GET":
            return answer(request)
        count = len(posted)
        posted.append(request)
        return sse_reply(chat_events(["a", "b"]), stall_after=2 if count == 4 else None)

    posted: list[SeenRequest] = []
    asked = level(FixedConcurrency(2), limits=Limits(max_seconds=0.3), drain_s=0.1)
    result, _ = measured(script, asked)
    assert result.errors == {"unfinished": 1}
    (stuck,) = [record for record in result.records if record.error]
    assert stuck.first_token is not None
    assert stuck.e2e_ms is None


def test_a_stop_keeps_what_was_measured_and_counts_no_failure():
    stall = threading.Event()

    def script(request):
        if request.method == "GET":
            return answer(request)
        posted.append(request)
        if len(posted) == 9:
            stall.set()
        return answer(request) if len(posted) < 8 else Reply(stall_after=0)

    async def measure():
        stop = asyncio.Event()

        async def stop_when_stalled():
            await asyncio.to_thread(stall.wait)
            stop.set()

        stopping = asyncio.create_task(stop_when_stalled())
        asked = level(FixedConcurrency(2), limits=Limits(max_seconds=60))
        target = await find_target(engine.url)
        result = await run_level(target, asked, PROMPTS, stop=stop)
        await stopping
        return result

    posted: list[SeenRequest] = []
    with serving(script) as engine:
        result = run(measure())
    assert result.ended_by == "stopped"
    assert (result.num_ok, result.num_failed) == (7, 0)
    assert result.num_cancelled == 2
    assert any("2 requests were in flight" in note for note in result.notes)


# ----------------------------------------------------------------------------- faults


def test_failures_stay_in_the_denominator():
    def script(request):
        if request.method == "GET":
            return answer(request)
        posted.append(request)
        return json_reply({"error": "full"}, 503) if len(posted) % 2 else answer(request)

    posted: list[SeenRequest] = []
    asked = level(FixedConcurrency(1), limits=Limits(max_requests=4), slo=Slo(ttft_ms=60_000))
    result, _ = measured(script, asked)
    assert result.errors == {"overloaded": 2}
    assert result.error_texts == {"overloaded": "full"}
    assert (result.goodput_share, result.ttft_ms.count, result.ttft_ms.num_missing) == (0.5, 4, 2)
    assert result.as_dict()["ttft_ms"]["p99"]["value"] == "never"


def test_an_endpoint_that_dies_midway_leaves_what_was_measured():
    with serving() as engine:

        def script(request):
            if request.method == "POST" and len(posts(engine)) == 6:
                engine._server.close()
                return Reply(headers=(), pieces=(b"x",), cut_after=0)
            return answer(request)

        async def measure():
            target = await find_target(engine.url)
            asked = level(FixedConcurrency(1), limits=Limits(max_requests=50, max_errors=3))
            return await run_level(target, asked, PROMPTS)

        engine.script = script
        result = run(measure())
    assert (result.num_ok, result.ended_by) == (5, "max_errors")
    assert set(result.errors) == {"cut", "connect"}
    assert "no connection" in result.error_texts["connect"]


def test_a_cut_stream_keeps_its_first_token():
    def script(request):
        if request.method == "GET":
            return answer(request)
        posted.append(request)
        events = chat_events(["a", "b", "c"])
        return sse_reply(events, cut_after=3 if len(posted) == 2 else None)

    posted: list[SeenRequest] = []
    result, _ = measured(script, level(FixedConcurrency(1), limits=Limits(max_requests=4)))
    assert result.errors == {"cut": 1}
    assert result.ttft_ms.num_missing == 0
    assert result.e2e_ms.num_missing == 1


def test_answers_without_usage_are_counted_by_chunks_and_it_is_said():
    def script(request):
        if request.method == "GET":
            return answer(request)
        return sse_reply(chat_events(["a"] * 5, has_usage=False))

    result, _ = measured(script, level(FixedConcurrency(1)))
    assert all(record.output_tokens == 5 for record in result.records)
    assert any("no usage" in note for note in result.notes)


def test_time_per_token_is_by_tokens_where_chunks_hold_several():
    def chunk(text):
        return event({"choices": [{"index": 0, "delta": {"content": text}}]})

    usage = event({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 9}})

    def script(request):
        if request.method == "GET":
            return answer(request)
        pieces = [chunk("a b c"), chunk("d e f"), chunk("g h i"), usage, DONE]
        return sse_reply(pieces, piece_delay=0.02)

    result, _ = measured(script, level(FixedConcurrency(1), limits=Limits(max_requests=3)))
    for record in result.records:
        assert len(record.token_times) == 3
        spread = record.token_times[-1] - record.token_times[0]
        assert record.tpot_ms == pytest.approx(1e3 * spread / 8)


def test_an_endpoint_that_ignores_ignore_eos_is_told_of():
    def script(request):
        return sse_reply(chat_events(["a"])) if request.method == "POST" else answer(request)

    result, _ = measured(script, level(FixedConcurrency(1)))
    assert any("ignores ignore_eos" in note for note in result.notes)


def test_a_few_requests_are_said_to_be_too_few():
    result, _ = measured(answer, level(FixedConcurrency(1)))
    assert any("10 requests are too few" in note for note in result.notes)
    assert result.ttft_ms.p99.high is None


def test_a_level_whose_generator_was_late_is_not_certified():
    """Like a client too slow for what it measures."""
    asked = level(FixedConcurrency(1), max_lag_ms=50, limits=Limits(max_seconds=1.2))
    result, _ = measured(answer, asked, on_progress=lambda _: time.sleep(0.3))
    assert not result.is_certified
    assert any("load generator" in doubt for doubt in result.doubts)
    assert result.lag.max_ms > 200


# --------------------------------------------------------------- nothing can be measured


def test_an_endpoint_that_is_down():
    with pytest.raises(BenchError, match=r"cannot connect .* is it running"):
        run(find_target("http://127.0.0.1:9"))


@pytest.mark.parametrize(
    ("reply", "options", "says"),
    [
        (json_reply({}, 401), {}, "it wants a key .* CARPOOL_API_KEY"),
        (json_reply({}, 403), {"api_key": "sk-secret"}, "the key was refused"),
        (json_reply({"data": [{"id": "a"}, {"id": "b"}]}), {}, "2 models .a, b.; give one"),
        (json_reply({"data": [{"id": "a"}]}), {"model": "b"}, "no model 'b'; it has a"),
        (json_reply({}, 404), {}, "does not list its models"),
    ],
)
def test_endpoints_that_are_not_ready(reply, options, says):
    with serving(reply) as engine, pytest.raises(BenchError, match=says) as error:
        run(find_target(engine.url, **options))
    assert "sk-secret" not in str(error.value)


def acquainted(script, **options):
    with serving(script) as engine:

        async def meet():
            return await get_acquainted(await find_target(engine.url, **options))

        return run(meet()), engine


def test_the_first_words_tell_how_many_tokens_words_are():
    def script(request):
        if request.method == "GET":
            return answer(request)
        words = len(request.json["messages"][0]["content"].split())
        return sse_reply(chat_events(["a"], prompt=11 + 2 * words))

    known, _ = acquainted(script)
    assert (known.scale.tokens_per_word, known.scale.overhead) == (2, 11)


@pytest.mark.parametrize("field", ["ignore_eos", "stream_options"])
def test_a_field_that_is_refused_is_left_out(field):
    def script(request):
        if request.method == "POST" and field in request.json:
            return json_reply({"error": {"message": f"unknown field {field}"}}, 400)
        return answer(request)

    known, engine = acquainted(script)
    assert any(field in note for note in known.notes)
    assert field not in posts(engine)[-1].json


def test_a_key_is_sent_and_shown_to_nobody():
    def script(request):
        if request.method == "GET":
            return answer(request)
        return json_reply({"error": {"message": "wrong key: sk-secret"}}, 401)

    with pytest.raises(BenchError) as error:
        acquainted(script, api_key="sk-secret")
    assert "refuses the key" in str(error.value)
    assert "sk-secret" not in str(error.value)


def test_the_completions_api_gets_text():
    async def measure():
        target = await find_target(engine.url, api=Api.COMPLETIONS)
        await run_level(target, level(FixedConcurrency(1), limits=Limits(max_requests=1)), PROMPTS)

    with serving(answer) as engine:
        run(measure())
    (request,) = posts(engine)
    assert request.path == "/v1/completions"
    assert isinstance(request.json["prompt"], str)


def test_a_level_without_an_end_is_refused():
    with pytest.raises(BenchError, match="never end"):
        level(FixedConcurrency(1), limits=Limits())
