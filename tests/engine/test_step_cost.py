"""What a step costs is learnt from steps, and learnt anew when it changes."""

import random

import pytest

from carpool.engine.step_cost import StepCost


def run(cost, num_steps, fixed_s, decode_s, prompt_s, noise=0.0, seed=1):
    rng = random.Random(seed)
    for _ in range(num_steps):
        decodes, prompts = rng.randrange(1, 33), rng.choice([0, 0, 32, 128, 256])
        seconds = fixed_s + decode_s * decodes + prompt_s * prompts
        cost.observe(decodes, prompts, seconds * (1 + noise * rng.uniform(-1, 1)))


@pytest.mark.parametrize(
    ("fixed_s", "decode_s", "prompt_s", "worth"),
    [(0.012, 0.002, 0.00145, 52), (0.010, 0.0003, 0.0001, 196), (0.05, 0.0, 0.05, 1)],
)
def test_prompt_tokens_that_take_as_long_as_a_decode_step(fixed_s, decode_s, prompt_s, worth):
    cost = StepCost()
    run(cost, 200, fixed_s, decode_s, prompt_s, noise=0.1)
    assert cost.prompt_tokens_worth(32) == pytest.approx(worth, rel=0.15)


def test_there_is_a_least_time_to_spend():
    cost = StepCost()
    run(cost, 200, 0.012, 0.002, 0.00145)
    assert cost.prompt_tokens_worth(1, at_least_s=0.1) == pytest.approx(69, rel=0.1)
    assert cost.prompt_tokens_worth(200, at_least_s=0.1) == pytest.approx(284, rel=0.1)


def test_another_speed_is_found_out():
    cost = StepCost()
    run(cost, 200, 0.012, 0.002, 0.00145)
    run(cost, 600, 0.010, 0.0003, 0.0001, seed=2)
    assert cost.prompt_tokens_worth(32) == pytest.approx(196, rel=0.15)


def test_nothing_is_said_before_enough_was_seen():
    cost = StepCost()
    assert cost.prompt_tokens_worth(8) is None
    for _ in range(50):
        cost.observe(4, 0, 0.02)
    assert cost.prompt_tokens_worth(8) is None, "no prompt was seen"


def test_a_long_time_of_the_same_steps_spoils_nothing():
    cost = StepCost()
    run(cost, 100, 0.012, 0.002, 0.00145)
    for _ in range(20_000):
        cost.observe(1, 0, 0.014)
    run(cost, 30, 0.012, 0.002, 0.00145)
    assert cost.prompt_tokens_worth(32) == pytest.approx(52, rel=0.3)


@pytest.mark.parametrize(
    ("fixed_s", "decode_s", "worth"), [(0.012, 0.002, 12), (0.02, 0.0001, 400), (0.0001, 0.002, 8)]
)
def test_decodes_that_are_worth_a_step_of_their_own(fixed_s, decode_s, worth):
    cost = StepCost()
    assert cost.decodes_worth_a_step() is None
    run(cost, 200, fixed_s, decode_s, 0.0014)
    assert cost.decodes_worth_a_step() == pytest.approx(worth, rel=0.05, abs=1)
