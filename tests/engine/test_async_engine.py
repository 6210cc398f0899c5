"""Streams of the real model from a thread of steps: begun, ended, cut off, refused."""

import asyncio
import contextlib
import logging
import threading
from dataclasses import replace

import pytest

from carpool.engine.client import EngineState, QueueFull
from carpool.engine.engine import AsyncEngine
from carpool.engine.grammar_error import GrammarError
from carpool.engine.grammars import json_schema_grammar, lark_grammar
from carpool.engine.loader import LoadedModel
from carpool.errors import CarpoolError
from carpool.scheduling.rejection import RejectReason, RequestRejected
from carpool.scheduling.request import FinishReason

pytestmark = pytest.mark.model

PROMPT = list(range(1000, 1012))
LONG = {"max_tokens": 500}


def run(scenario):
    """Run a scenario that would wait for ever if a stream never ended."""
    asyncio.run(asyncio.wait_for(scenario, 60))


class StepByStep:
    """The real model; each step waits for a permit once it is computed."""

    def __init__(self, executor):
        self.executor = executor
        self.vocab_size = executor.vocab_size
        self.permits = threading.Semaphore(10**6)
        self.steps = []
        self.has_begun = threading.Condition()

    def allow(self, num_steps):
        self.permits = threading.Semaphore(num_steps)

    def execute(self, scheduled, num_logits):
        with self.has_begun:
            self.steps.append({item.request.request_id.split("#")[0] for item in scheduled})
            self.has_begun.notify_all()
        logits = self.executor.execute(scheduled, num_logits)
        if not self.permits.acquire(timeout=30):
            raise RuntimeError("the test gave no permit")
        return logits

    async def begins_step(self, number):
        def wait():
            with self.has_begun:
                return self.has_begun.wait_for(lambda: len(self.steps) >= number, timeout=30)

        assert await asyncio.to_thread(wait)

    def num_steps_of(self, request_id):
        return sum(request_id in step for step in self.steps)


@pytest.fixture
def executor(demo_executor):
    return StepByStep(demo_executor)


@pytest.fixture
def running(make_core, executor, demo_tokenizer, demo_guidance):
    """Make an engine that is loaded, and stop it afterwards."""

    @contextlib.asynccontextmanager
    async def make(max_waiting=100, **limits):
        core = make_core(executor=executor, **limits)
        config = core.scheduler.config
        loaded = LoadedModel(core, executor, config, demo_tokenizer, demo_guidance, None)
        engine = AsyncEngine(lambda: loaded, "demo", max_waiting=max_waiting)
        engine.start()
        await engine.wait_until_loaded()
        try:
            yield engine
        finally:
            executor.permits.release(10**6)
            await engine.stop()

    return make


@pytest.fixture
def alone(make_core, make_request, run_core):
    """Tokens that the core gives a request when there is no other."""
    return lambda request: run_core(make_core(), request)[request.request_id].token_ids


async def collect(engine, request):
    return [delta async for delta in engine.generate(request)]


def tokens_of(deltas):
    return [token for delta in deltas for token in delta.token_ids]


def num_running(engine):
    stats = engine.stats().scheduler
    return stats.num_running + stats.num_waiting


def test_a_stream_gives_the_cores_tokens_and_their_text(
    running, make_request, alone, demo_tokenizer
):
    async def scenario():
        async with running() as engine:
            deltas = await collect(engine, make_request("r", PROMPT))
            tokens = tokens_of(deltas)
            assert tokens == alone(make_request("r", PROMPT))
            assert "".join(d.text for d in deltas) == demo_tokenizer.decode(tokens)
            assert [d.finish_reason for d in deltas] == [None] * 7 + [FinishReason.LENGTH]
            assert deltas[-1].num_output_tokens == len(deltas[0].logprobs) * 8 == 8
            assert num_running(engine) == 0

    run(scenario())


def test_many_streams_at_once_each_get_their_own_tokens(running, make_request, alone):
    async def scenario():
        requests = [make_request(f"r{i}", [*PROMPT, 2000 + i]) for i in range(6)]
        async with running() as engine:
            streams = await asyncio.gather(*(collect(engine, each) for each in requests))
        assert [tokens_of(deltas) for deltas in streams] == [alone(each) for each in requests]

    run(scenario())


def test_closing_a_stream_aborts_its_request_within_one_step(running, executor, make_request):
    async def scenario():
        async with running() as engine:
            executor.allow(1)
            stream = engine.generate(make_request("gone", PROMPT, **LONG))
            await anext(stream)
            await stream.aclose()
            executor.permits.release(100)
            await collect(engine, make_request("after", PROMPT, max_tokens=3))
            # One step gave the token; one more may have been on its way.
            assert executor.num_steps_of("gone") <= 2
            stats = engine.stats()
            assert (num_running(engine), stats.scheduler.num_used_blocks) == (0, 0)
            assert stats.num_finished[FinishReason.ABORT] == 1

    run(scenario())


def test_cancelling_who_waits_for_a_stream_aborts_its_request(running, executor, make_request):
    async def scenario():
        async with running() as engine:
            executor.allow(0)
            task = asyncio.create_task(collect(engine, make_request("gone", PROMPT, **LONG)))
            await executor.begins_step(1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            executor.permits.release(100)
            await collect(engine, make_request("after", PROMPT, max_tokens=3))
            assert executor.num_steps_of("gone") == 1
            assert num_running(engine) == 0

    run(scenario())


def test_an_id_in_use_is_refused_and_the_first_goes_on(running, make_request, alone):
    async def scenario():
        async with running() as engine:
            request = make_request("same", PROMPT)
            first = engine.generate(request)
            deltas = [await anext(first)]
            with pytest.raises(RequestRejected) as refused:
                await collect(engine, make_request("same", PROMPT[:4]))
            assert refused.value.reason is RejectReason.DUPLICATE_ID
            assert "'same'" in refused.value.message
            deltas += [delta async for delta in first]
            assert tokens_of(deltas) == alone(request)
            assert tokens_of(await collect(engine, request)) == alone(request)

    run(scenario())


def test_an_id_can_be_used_again_while_its_finished_stream_is_still_open(
    running, make_request, alone
):
    async def scenario():
        async with running() as engine:
            first = engine.generate(make_request("same", PROMPT, max_tokens=1))
            assert (await anext(first)).finish_reason is FinishReason.LENGTH
            request = make_request("same", PROMPT[:5])
            second = engine.generate(request)
            deltas = [await anext(second)]
            await first.aclose()
            deltas += [delta async for delta in second]
            assert tokens_of(deltas) == alone(request)

    run(scenario())


def test_nothing_of_a_closed_stream_reaches_the_next_with_its_id(
    running, executor, make_request, alone
):
    async def scenario():
        async with running() as engine:
            executor.allow(1)
            first = engine.generate(make_request("same", PROMPT, **LONG))
            await anext(first)
            await executor.begins_step(2)
            await first.aclose()
            request = make_request("same", PROMPT[:5])
            task = asyncio.create_task(collect(engine, request))
            await asyncio.sleep(0)
            executor.permits.release(100)
            assert tokens_of(await task) == alone(request)

    run(scenario())


def test_a_full_queue_refuses_and_has_room_again_after(running, executor, make_request):
    async def scenario():
        async with running(max_waiting=1, max_num_seqs=1) as engine:
            executor.allow(0)
            tasks = [
                asyncio.create_task(collect(engine, make_request(f"r{i}", PROMPT, max_tokens=2)))
                for i in range(2)
            ]
            await asyncio.sleep(0)
            with pytest.raises(QueueFull, match=r"2 requests .* limit is 2") as refused:
                await collect(engine, make_request("third", PROMPT))
            assert refused.value.retry_after_s >= 1
            executor.permits.release(100)
            assert [len(deltas) for deltas in await asyncio.gather(*tasks)] == [2, 2]
            deltas = await collect(engine, make_request("third", PROMPT, max_tokens=2))
            assert len(deltas) == 2

    run(scenario())


def test_what_cannot_fit_is_refused_and_its_neighbour_goes_on(running, make_request, alone):
    async def scenario():
        async with running(num_blocks=4) as engine:
            request = make_request("fits", PROMPT)
            neighbour = asyncio.create_task(collect(engine, request))
            with pytest.raises(RequestRejected) as refused:
                await collect(engine, make_request("big", PROMPT, max_tokens=200))
            assert refused.value.reason is RejectReason.EXCEEDS_KV_CACHE
            assert tokens_of(await neighbour) == alone(request)
            assert len(await collect(engine, make_request("big", PROMPT, max_tokens=2))) == 2

    run(scenario())


def test_a_stop_string_over_several_tokens_ends_a_stream(
    running, executor, make_request, demo_tokenizer, alone
):
    async def scenario():
        prompt = demo_tokenizer.encode("One, two, three, four, five,")
        tokens = alone(make_request("r", prompt))
        text = demo_tokenizer.decode(tokens)
        cut = len(demo_tokenizer.decode(tokens[:3]))
        stop = text[cut - 2 : cut + 2]
        request = replace(make_request("r", prompt, **LONG), stop=(stop,))
        async with running() as engine:
            deltas = await collect(engine, request)
            assert "".join(delta.text for delta in deltas) == text[: text.index(stop)]
            last = deltas[-1]
            assert (last.finish_reason, last.stop_reason) == (FinishReason.STOP, stop)
            await collect(engine, make_request("after", PROMPT, max_tokens=1))
            assert engine.stats().num_finished[FinishReason.STOP] == 1
            assert num_running(engine) == 0

    run(scenario())


def test_a_drain_finishes_what_runs_and_takes_nothing_new(running, executor, make_request):
    async def scenario():
        async with running() as engine:
            executor.allow(1)
            stream = engine.generate(make_request("running", PROMPT))
            deltas = [await anext(stream)]
            drained = asyncio.create_task(engine.drain(within_s=60))
            await asyncio.sleep(0)
            assert engine.state is EngineState.DRAINING
            with pytest.raises(QueueFull, match="shutting down"):
                await collect(engine, make_request("new", PROMPT))
            executor.permits.release(100)
            deltas += [delta async for delta in stream]
            assert len(tokens_of(deltas)) == 8
            assert deltas[-1].finish_reason is FinishReason.LENGTH
            assert await drained

    run(scenario())


def test_a_drain_aborts_what_is_not_done_in_time(running, executor, make_request):
    async def scenario():
        async with running() as engine:
            executor.allow(1)
            task = asyncio.create_task(collect(engine, make_request("slow", PROMPT, **LONG)))
            await executor.begins_step(2)
            assert not await engine.drain(within_s=0)
            deltas = await task
            assert deltas[-1].finish_reason is FinishReason.ABORT
            assert len(tokens_of(deltas)) == 1

    run(scenario())


def test_an_idle_engine_is_drained_at_once(running):
    async def scenario():
        async with running() as engine:
            assert await engine.drain(within_s=0.001)

    run(scenario())


def test_an_engine_is_loading_then_ready(make_core, demo_tokenizer, demo_guidance, executor):
    async def scenario():
        may_load = threading.Event()
        core = make_core()

        def load():
            may_load.wait(30)
            config = core.scheduler.config
            return LoadedModel(core, executor, config, demo_tokenizer, demo_guidance, None)

        engine = AsyncEngine(load, "demo")
        assert engine.state is EngineState.LOADING
        engine.start()
        assert engine.state is EngineState.LOADING
        assert engine.retry_after_s >= 1
        may_load.set()
        loaded = await engine.wait_until_loaded()
        assert loaded.core is core
        assert engine.state is EngineState.READY
        assert engine.max_model_len == 2048
        assert num_running(engine) == 0
        await engine.stop()

    run(scenario())


def test_a_model_that_cannot_be_loaded_leaves_the_engine_failed(make_request):
    async def scenario():
        def load():
            raise CarpoolError("the file is cut off")

        engine = AsyncEngine(load, "demo")
        engine.start()
        with pytest.raises(CarpoolError, match="cut off"):
            await engine.wait_until_loaded()
        assert engine.state is EngineState.FAILED
        assert "cut off" in str(engine.error)
        with pytest.raises(RuntimeError, match="cut off"):
            await collect(engine, make_request("r", PROMPT))
        await engine.stop()

    run(scenario())


class Panic(BaseException):
    """What a panic in a Rust library comes as: no Exception."""


@pytest.mark.parametrize("failure", [KeyError("books"), Panic("books")])
def test_a_step_loop_that_breaks_ends_every_stream_with_an_error(
    running, executor, make_request, monkeypatch, caplog, failure
):
    caplog.set_level(logging.CRITICAL)

    async def scenario():
        async with running() as engine:
            executor.allow(1)
            loaded = await engine.wait_until_loaded()
            task = asyncio.create_task(collect(engine, make_request("r", PROMPT, **LONG)))
            await executor.begins_step(2)

            def broken(*arguments):
                raise failure

            monkeypatch.setattr(loaded.core.scheduler, "update", broken)
            executor.permits.release(100)
            last = (await task)[-1]
            assert last.finish_reason is FinishReason.ERROR
            assert "books" in last.error
            assert engine.state is EngineState.FAILED
            with pytest.raises(RuntimeError, match="books"):
                await collect(engine, make_request("next", PROMPT))

    run(scenario())


def test_grammars_that_break_end_their_own_streams_and_no_others(running, make_request, alone):
    async def scenario():
        plain = make_request("plain", PROMPT, max_tokens=40)
        endless = make_request("endless", PROMPT, grammar=lark_grammar('start: "a" start'))
        async with running() as engine:
            streams = [collect(engine, each) for each in (plain, endless)]
            first, second = await asyncio.gather(*streams, return_exceptions=True)
            assert tokens_of(first) == alone(plain)
            assert isinstance(second, GrammarError)
            assert num_running(engine) == 0

    run(scenario())


def test_objects_of_a_thousand_optional_properties_can_be_written(running, make_request):
    async def scenario():
        properties = {f"p{number}": {"type": "boolean"} for number in range(1000)}
        grammar = json_schema_grammar({"type": "object", "properties": properties})
        request = make_request("r", PROMPT, grammar=grammar, max_tokens=20, ignore_eos=False)
        async with running() as engine:
            deltas = await collect(engine, request)
            assert deltas[-1].error is None
            assert "".join(delta.text for delta in deltas).startswith("{")

    run(scenario())
