"""Runs that no engine made: what a noisy one would have answered."""

import random

from carpool.evals.answer import Answer, ToolCall
from carpool.evals.check import Verdict
from carpool.evals.eval_run import EvalRun, Result, RunInfo
from carpool.evals.template import TemplateFacts

INFO = RunInfo(
    set_name="made",
    set_sha256="0",
    url="http://x",
    model="m",
    repeats=5,
    temperature=0.8,
    started_at=1e9,
    num_planned=0,
)


def made_run(
    dice: random.Random, *, num_cases: int = 20, repeats: int = 5, loss: float = 0.0
) -> EvalRun:
    """A noisy engine at temperature 0.8: each case passes with a rate of its own, less `loss`;
    answers are of random lengths, some are cut, some call no tool."""
    rates = random.Random(1)
    results = []
    for number in range(num_cases):
        rate = rates.choice([0.05, 0.3, 0.5, 0.8, 0.95, 1.0])
        is_cut, calls = 0.3 * rates.random(), rates.random()
        for repeat in range(repeats):
            has_passed = dice.random() < rate * (1 - loss)
            call = (ToolCall("f", "{}"),) if dice.random() < calls else ()
            answer = Answer(
                text="word",
                tool_calls=call,
                finish_reason="length" if dice.random() < is_cut else "stop",
                prompt_tokens=10 + number,
                completion_tokens=dice.randrange(5, 60),
                total_s=0.1,
            )
            results.append(
                Result(
                    case_id=f"case-{number}",
                    tags=(f"tag-{number % 4}",),
                    is_stream=False,
                    repeat=repeat,
                    has_tools=number % 2 == 0,
                    answer=answer,
                    verdicts=(Verdict("contains", None if has_passed else "no"),),
                )
            )
    return EvalRun(INFO, TemplateFacts(), tuple(results), is_complete=True)
