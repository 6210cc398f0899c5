"""Grammars are tried out in a process that can be ended, and the engine's never suffers."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from carpool.engine.client import QueueFull
from carpool.engine.compiled_grammars import CompiledGrammars
from carpool.engine.grammar_compiler import TokenTable
from carpool.engine.grammar_error import GrammarError
from carpool.engine.grammar_trial import table_to_json
from carpool.engine.grammar_trials import MAX_WAITING, GrammarTrials
from carpool.engine.grammars import (
    choice_grammar,
    json_schema_grammar,
    lark_grammar,
    regex_grammar,
)
from carpool.engine.turns import Turns

BYTES = TokenTable((*(bytes([value]) for value in range(256)), b"<eos>"), (256,), (256,), None)


def run(scenario):
    return asyncio.run(asyncio.wait_for(scenario, 120))


@contextlib.asynccontextmanager
async def trials():
    made = GrammarTrials(BYTES)
    try:
        yield made
    finally:
        await made.stop()


async def outcome(made: GrammarTrials, grammar: str, person: str = "") -> str:
    try:
        await made.num_bytes(grammar, person)
    except GrammarError as error:
        return str(error)
    return "taken"


def doubling(num_levels: int) -> str:
    levels = "\n".join(f"A{i}: A{i - 1} A{i - 1}" for i in range(1, num_levels + 1))
    return f'start: A{num_levels}\n{levels}\nA0: "x"\n'


def as_written(lark: str) -> str:
    """A grammar that nobody has measured."""
    return json.dumps({"grammars": [{"lark_grammar": lark}]})


def repeated(times: int) -> str:
    return as_written(f"start: /a{{{times}}}/")


def multiple_of(number: int) -> str:
    return f'start: %json {{"type": "integer", "multipleOf": {number}}}\n'


HOSTILE = {
    "a repetition": repeated(1_000_000_000),
    "repetitions of repetitions": as_written("start: /((((a{100}){100}){100}){100})/"),
    "a terminal of terminals": as_written(doubling(30)),
    "a multiple of a large prime": multiple_of(1_000_003),
    "multiples inside": 'start: %json {"items": {"multipleOf": 1000003}}\n',
    "a text without end": lark_grammar('start: "a" start'),
    "much text that is forced": as_written('start: "' + "ab " * 20_000 + '"'),
    "deep nesting": as_written("start: /" + "(" * 30_000 + ")" * 30_000 + "/"),
}
USUAL = {
    "an address": regex_grammar(r"(\d{1,3}\.){3}\d{1,3}"),
    "choices": choice_grammar([str(number) for number in range(5000)]),
    "a time": lark_grammar("start: T\nT: /\\d{4}-\\d{2}-\\d{2}T\\d{2}:\\d{2}:\\d{2}Z/"),
    "many required fields": json_schema_grammar(
        {
            "type": "object",
            "properties": {f"p{i}": {"type": "string"} for i in range(500)},
            "required": [f"p{i}" for i in range(500)],
        }
    ),
    "a thousand optional fields": json_schema_grammar(
        {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(1000)}}
    ),
    "multiples": json_schema_grammar({"type": "number", "multipleOf": 0.01}),
    "a long text": json_schema_grammar({"type": "string", "minLength": 1, "maxLength": 5000}),
}


def test_what_would_fill_the_memory_or_take_for_ever_is_refused_and_the_rest_taken():
    async def scenario():
        async with trials() as made:
            refused = {name: await outcome(made, grammar) for name, grammar in HOSTILE.items()}
            taken = {name: await outcome(made, grammar) for name, grammar in USUAL.items()}
        assert "taken" not in refused.values(), refused
        assert all(len(said) < 100 for said in refused.values()), refused
        assert set(taken.values()) == {"taken"}, taken

    run(scenario())


def test_a_grammar_is_tried_once():
    async def scenario():
        async with trials() as made:
            assert "takes over 0.5 s" in await outcome(made, HOSTILE["a repetition"])
            await made.num_bytes(USUAL["an address"])
            begun = time.process_time(), time.monotonic()
            for _ in range(100):
                await outcome(made, HOSTILE["a repetition"])
                await made.num_bytes(USUAL["an address"])
            assert time.monotonic() - begun[1] < 0.2  # 100 trials take 50 s

    run(scenario())


def test_answers_that_nobody_waited_for_are_not_taken_for_others():
    async def scenario():
        async with trials() as made:
            await made.start()
            gone = [asyncio.create_task(outcome(made, repeated(10**8 + i))) for i in range(3)]
            await asyncio.sleep(0.05)
            for task in gone:
                task.cancel()
            await asyncio.gather(*gone, return_exceptions=True)
            assert await outcome(made, USUAL["an address"]) == "taken"
            assert "unclosed" in await outcome(made, regex_grammar("("))

    run(scenario())


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="no list of child processes")
def test_the_process_is_replaced_when_it_is_lost():
    async def scenario():
        others = set(children(os.getpid()))
        async with trials() as made:
            assert await outcome(made, regex_grammar("a")) == "taken"
            [child] = set(children(os.getpid())) - others
            os.kill(child, signal.SIGKILL)
            assert await outcome(made, regex_grammar("b")) == "taken"

    run(scenario())


def test_too_many_that_wait_are_turned_away():
    async def scenario():
        async with trials() as made:
            await made.start()
            grammars = [repeated(10**8 + i) for i in range(MAX_WAITING + 2)]
            tasks = [asyncio.create_task(made.num_bytes(each)) for each in grammars]
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
            assert isinstance(done.pop().exception(), QueueFull)
            await asyncio.gather(*tasks, return_exceptions=True)

    run(scenario())


def children(pid: int) -> list[int]:
    """Processes that the threads of `pid` started."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def test_the_process_ends_when_its_engine_does():
    command = [sys.executable, "-m", "carpool.engine.grammar_trial"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        process.stdin.write(table_to_json(BYTES) + "\n" + json.dumps([7, 'start: "a"']) + "\n")
        process.stdin.flush()
        number, error, _ = json.loads(process.stdout.readline())
        assert (number, error) == (7, None)
        process.stdin.close()
        assert process.wait(10) == 0


def test_persons_take_turns():
    async def scenario():
        turns, order = Turns(), []

        async def ask(person):
            async with turns.turn(person):
                order.append(person)
                await asyncio.sleep(0)

        persons = ["greedy"] * 5 + ["ada", "bob", "ada"]
        tasks = [asyncio.create_task(ask(person)) for person in persons]
        await asyncio.sleep(0)
        tasks[1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert order == ["greedy", "greedy", "ada", "bob", "greedy", "ada", "greedy"]
        assert turns.num_waiting == 0

    run(scenario())


@pytest.mark.model
def test_a_grammar_costs_little_the_first_time_and_nothing_after(demo_guidance):
    async def scenario():
        grammars = CompiledGrammars(demo_guidance)
        await grammars.start()
        async with grammars.matcher(regex_grammar("warm")):
            pass
        schema = json_schema_grammar({"type": "object", "properties": {"a": {"type": "string"}}})
        seconds = []
        for _ in range(2):
            begun = time.monotonic()
            async with grammars.matcher(schema) as matcher:
                seconds.append(time.monotonic() - begun)
                matcher.fill_bitmask(demo_guidance.allocate_bitmask(1)[0])
        await grammars.stop()
        return seconds

    first, second = run(scenario())
    print(f"first {first * 1e3:.1f} ms, then {second * 1e3:.3f} ms")
    assert second < first
