"""The core on the real model: one request's trouble is its own, and everything is given back."""

import dataclasses
import logging

import numpy as np
import pytest

from carpool.engine.grammar_error import GrammarError
from carpool.engine.grammars import regex_grammar
from carpool.scheduling.rejection import RejectReason, RequestRejected
from carpool.scheduling.request import FinishReason

pytestmark = pytest.mark.model

PROMPT = list(range(1000, 1040))


class Wrapped:
    """An executor that another one stands behind."""

    def __init__(self, executor):
        self.executor = executor
        self.vocab_size = executor.vocab_size
        self.num_steps = 0

    def execute(self, scheduled, num_logits):
        self.num_steps += 1
        return self.spoil(self.executor.execute(scheduled, num_logits))

    def spoil(self, logits):
        return logits


class FailsOnce(Wrapped):
    """Raises in one step, after the model has written to the cache."""

    failing_step = 3

    def spoil(self, logits):
        if self.num_steps == self.failing_step:
            raise RuntimeError("the processor is on fire")
        return logits


def used_blocks(core):
    return core.stats().scheduler.num_used_blocks


def test_a_step_that_fails_ends_its_own_requests_and_the_engine_goes_on(
    demo_executor, make_core, make_request, run_core, assert_same_tokens, caplog
):
    caplog.set_level(logging.CRITICAL)
    executor = FailsOnce(demo_executor)
    core = make_core(executor=executor, max_num_seqs=2)
    requests = [make_request(f"r{i}", [2000 + i] * 9, max_tokens=5) for i in range(4)]
    answers = run_core(core, *requests)
    for name in ("r0", "r1"):
        assert answers[name].finish_reason is FinishReason.ERROR
        assert "the processor is on fire" in answers[name].error
        assert len(answers[name].token_ids) == 2
    expected = run_core(make_core(), *requests)
    names = ["r2", "r3"]
    assert_same_tokens([expected[n] for n in names], [answers[n] for n in names])
    again = run_core(core, *requests)
    assert_same_tokens(list(expected.values()), list(again.values()))
    assert used_blocks(core) == 0
    stats = core.stats()
    assert stats.num_finished == {FinishReason.ERROR: 2, FinishReason.LENGTH: 6}


def test_blocks_of_a_step_that_failed_are_never_found_again(
    demo_executor, make_core, make_request, run_core, assert_same_tokens, caplog
):
    caplog.set_level(logging.CRITICAL)

    class Corrupts(FailsOnce):
        failing_step = 1

    core = make_core(executor=Corrupts(demo_executor))
    request = make_request("r", PROMPT)
    assert run_core(core, request)["r"].finish_reason is FinishReason.ERROR
    again = run_core(core, request)["r"]
    assert again.num_cached_tokens == 0
    assert_same_tokens(list(run_core(make_core(), request).values()), [again])


def test_logits_that_are_not_finite_end_their_own_request(
    demo_executor, make_core, make_request, run_core, assert_same_tokens
):
    class Breaks(Wrapped):
        def spoil(self, logits):
            if self.num_steps == 3:
                logits[1] = np.nan
            return logits

    core = make_core(executor=Breaks(demo_executor))
    requests = [make_request(f"r{i}", [2000 + i] * 9, max_tokens=5) for i in range(3)]
    answers = run_core(core, *requests)
    assert answers["r1"].finish_reason is FinishReason.ERROR
    assert "not finite" in answers["r1"].error
    expected = run_core(make_core(), *requests)
    assert_same_tokens([expected["r0"], expected["r2"]], [answers["r0"], answers["r2"]])
    assert used_blocks(core) == 0


class BrokenMatcher:
    """A grammar that gives up at one of its calls."""

    def __init__(self, fills=10**9, accepts=10**9):
        self.fills, self.accepts = fills, accepts
        self.is_terminated = False

    def fill_bitmask(self, row):
        self.fills -= 1
        if self.fills < 0:
            raise GrammarError("too many states")

    def accept(self, token_id):
        self.accepts -= 1
        if self.accepts < 0:
            raise GrammarError("not allowed here")


@pytest.mark.parametrize("broken", [{"fills": 2}, {"accepts": 2}])
def test_a_grammar_that_fails_ends_its_own_request(
    make_core, make_request, run_core, demo_guidance, assert_same_tokens, broken
):
    core = make_core()
    core.add(make_request("broken", PROMPT[:9]), BrokenMatcher(**broken))
    good = make_request("digits", PROMPT[:8], max_tokens=20)
    core.add(good, demo_guidance.matcher(regex_grammar("[0-9]{3}")))
    plain = make_request("plain", PROMPT[:7])
    answers = run_core(core, plain)
    assert answers["broken"].finish_reason is FinishReason.ERROR
    assert "(after 2 tokens of output)" in answers["broken"].error
    assert answers["broken"].is_grammar_error
    assert len(answers["broken"].token_ids) == 2
    assert answers["digits"].finish_reason is FinishReason.STOP
    assert_same_tokens([run_core(make_core(), plain)["plain"]], [answers["plain"]])
    assert used_blocks(core) == 0


def test_a_grammar_is_kept_to_after_preemptions(
    make_core, make_request, run_core, demo_guidance, demo_tokenizer
):
    core = make_core(num_blocks=3, enable_prefix_cache=False)
    for number in range(3):
        request = make_request(f"r{number}", PROMPT[:31], max_tokens=30)
        core.add(request, demo_guidance.matcher(regex_grammar("[a-c]{20}")))
    answers = run_core(core)
    assert core.stats().scheduler.num_preemptions > 0
    for answer in answers.values():
        text = demo_tokenizer.decode(answer.token_ids)
        assert answer.finish_reason is FinishReason.STOP
        assert len(text) == 20
        assert set(text) <= set("abc")


def test_a_grammar_ends_though_end_of_sequence_is_ignored(
    make_core, make_request, run_core, demo_guidance, demo_tokenizer
):
    core = make_core()
    request = make_request("r", PROMPT[:5], ignore_eos=True, min_tokens=9, max_tokens=20)
    core.add(request, demo_guidance.matcher(regex_grammar("yes|no")))
    answer = run_core(core)["r"]
    assert demo_tokenizer.decode(answer.token_ids) in ("yes", "no")
    assert answer.finish_reason is FinishReason.STOP


def abort_while_waiting(core, make_request):
    core.add(make_request("before", PROMPT, max_tokens=30))
    core.step()
    core.add(make_request("gone", PROMPT))


def abort_before_the_first_step(core, make_request):
    core.add(make_request("gone", PROMPT))


def abort_in_the_prompt(core, make_request):
    core.add(make_request("gone", PROMPT))
    core.step()


def abort_while_decoding(core, make_request):
    core.add(make_request("gone", PROMPT))
    while not core.step():
        pass
    core.step()


def abort_before_the_last_token(core, make_request):
    core.add(make_request("gone", PROMPT, max_tokens=2))
    while not core.step():
        pass


def abort_while_preempted(core, make_request):
    core.add(make_request("before", PROMPT[:31], max_tokens=40))
    core.add(make_request("gone", PROMPT[:31], max_tokens=40))
    while core.stats().scheduler.num_preemptions == 0:
        core.step()


@pytest.mark.parametrize(
    ("reach", "limits"),
    [
        (abort_before_the_first_step, {}),
        (abort_while_waiting, {"max_num_seqs": 1}),
        (abort_in_the_prompt, {"max_num_batched_tokens": 16}),
        (abort_while_decoding, {}),
        (abort_before_the_last_token, {}),
        (abort_while_preempted, {"num_blocks": 3, "enable_prefix_cache": False}),
    ],
)
def test_an_abort_in_any_state_gives_everything_back(
    make_core, make_request, run_core, reach, limits
):
    core = make_core(**limits)
    reach(core, make_request)
    core.abort("gone")
    core.abort("gone")
    core.scheduler.check_invariants()
    answers = run_core(core, make_request("after", PROMPT[:20], max_tokens=3))
    assert "gone" not in answers
    assert len(answers["after"].token_ids) == 3
    stats = core.stats()
    assert (stats.scheduler.num_running, stats.scheduler.num_used_blocks) == (0, 0)
    assert stats.num_finished[FinishReason.ABORT] == 1
    assert not core.has_unfinished


def test_an_id_is_free_again_after_an_abort_and_refused_before(make_core, make_request, run_core):
    core = make_core()
    core.add(make_request("same", PROMPT))
    with pytest.raises(RequestRejected) as refused:
        core.add(make_request("same", PROMPT[:4]))
    assert refused.value.reason is RejectReason.DUPLICATE_ID
    core.step()
    core.abort("same")
    answer = run_core(core, make_request("same", PROMPT[:4], max_tokens=3))["same"]
    assert len(answer.token_ids) == 3


def test_four_requests_that_each_need_most_of_the_cache_all_finish(
    make_core, make_request, run_core, assert_same_tokens
):
    core = make_core(num_blocks=3, max_num_batched_tokens=128)
    requests = [make_request(f"r{i}", [2000 + i] * 40, max_tokens=20) for i in range(4)]
    answers = run_core(core, *requests)
    assert all(answer.finish_reason is FinishReason.LENGTH for answer in answers.values())
    assert all(len(answer.token_ids) == 20 for answer in answers.values())
    [alone] = run_core(make_core(), requests[3]).values()
    assert_same_tokens([alone], [answers["r3"]])
    assert core.stats().num_generation_tokens == 80


def test_what_cannot_fit_is_refused_with_both_numbers_and_the_next_runs(
    make_core, make_request, run_core
):
    core = make_core(num_blocks=2)
    with pytest.raises(RequestRejected, match=r"needs 65 KV slots.*has 64") as refused:
        core.add(make_request("big", PROMPT, max_tokens=26))
    assert refused.value.reason is RejectReason.EXCEEDS_KV_CACHE
    answer = run_core(core, make_request("fits", PROMPT, max_tokens=25))["fits"]
    assert len(answer.token_ids) == 25


def test_a_stop_token_ends_a_text_and_is_told(make_core, make_request, run_core):
    free = run_core(make_core(), make_request("r", PROMPT))["r"].token_ids
    stop = next(token for token in free[2:] if token not in free[:2])
    place = free.index(stop)
    stopped = run_core(make_core(), make_request("r", PROMPT, stop_token_ids=frozenset({stop})))
    assert stopped["r"].token_ids == free[: place + 1]
    assert (stopped["r"].finish_reason, stopped["r"].stop_reason) == (FinishReason.STOP, stop)


def test_min_tokens_keeps_stop_tokens_away(make_core, make_request, run_core):
    free = run_core(make_core(), make_request("r", PROMPT))["r"].token_ids
    fields = {"stop_token_ids": frozenset(free), "min_tokens": 5}
    answer = run_core(make_core(), make_request("r", PROMPT, **fields))["r"]
    assert not set(answer.token_ids[:4]) & set(free)
    assert len(answer.token_ids) >= 5


def test_end_of_sequence_ends_a_text_unless_it_is_ignored(
    make_core, make_request, run_core, demo_tokenizer
):
    prompt = demo_tokenizer.encode(
        "<|im_start|>user\nSay yes.<|im_end|>\n<|im_start|>assistant\nYes."
    )
    [eos] = demo_tokenizer.eos_token_ids & {2}
    push = {"logit_bias": ((eos, 100.0),), "max_tokens": 6}
    ends = make_request("ends", prompt, ignore_eos=False, **push)
    goes_on = make_request("goes on", prompt, ignore_eos=True, **push)
    waits = make_request("waits", prompt, ignore_eos=False, min_tokens=3, **push)
    answers = run_core(make_core(), ends, goes_on, waits)
    assert answers["ends"].token_ids == [eos]
    assert answers["ends"].finish_reason is FinishReason.STOP
    assert answers["goes on"].token_ids == [eos] * 6
    assert answers["goes on"].finish_reason is FinishReason.LENGTH
    assert len(answers["waits"].token_ids) >= 3
    assert eos not in answers["waits"].token_ids[:2]


def test_every_token_is_counted_once(make_core, make_request, run_core):
    core = make_core(num_blocks=3, enable_prefix_cache=False)
    requests = [make_request(f"r{i}", [2000 + i] * 31, max_tokens=5 + i) for i in range(3)]
    run_core(core, *requests)
    stats = core.stats()
    assert stats.scheduler.num_preemptions > 0
    assert stats.num_generation_tokens == 5 + 6 + 7
    assert stats.num_prompt_tokens == 3 * 31
    assert sum(stats.time_to_first_token.counts) == 3
    assert sum(stats.request_queue_time.counts) == 3
    assert sum(stats.e2e_request_latency.counts) == 3
    assert stats.num_finished == {FinishReason.LENGTH: 3}


def test_requests_without_a_seed_differ(make_core, make_request, run_core):
    request = make_request("r", PROMPT, temperature=1.5)
    core = make_core()
    first, second = (run_core(core, request)["r"].token_ids for _ in range(2))
    assert first != second
    seeded = dataclasses.replace(request, sampling=dataclasses.replace(request.sampling, seed=3))
    first, second = (run_core(core, seeded)["r"].token_ids for _ in range(2))
    assert first == second
