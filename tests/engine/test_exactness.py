"""At f32 a request's tokens are the same whoever else is served, and however it is cut up."""

import random

import pytest

pytestmark = pytest.mark.model

TEXT = (
    "A lighthouse keeper wrote in her diary every evening. On the first day the sea was calm and "
    "she counted eleven ships. On the second day a storm came from the north, and she lit the "
    "lamp early. On the third day a boat with two fishermen was driven on the rocks, and she "
    "rowed out to bring them in. They stayed for a week and mended the roof of her house, "
)


@pytest.fixture(scope="module")
def text_ids(demo_tokenizer):
    return demo_tokenizer.encode(TEXT)


@pytest.fixture(scope="module")
def prompts(text_ids, demo_executor):
    """Prompts at and around the borders of blocks, which share no first block."""
    size = demo_executor.block_size
    lengths = [size - 1, size, size + 1, 2 * size - 1, 2 * size, 2 * size + 1, 5, 1]
    return [text_ids[start : start + length] for start, length in enumerate(lengths)]


@pytest.fixture
def alone(make_core, make_request, run_core):
    """Answers to prompts that are served one after the other, each by a core of its own."""

    def answers(prompts, **fields):
        return [
            run_core(make_core(), make_request("only", prompt, **fields))["only"]
            for prompt in prompts
        ]

    return answers


@pytest.fixture
def together(make_request, run_core):
    """Answers to prompts that a core is given at once, in their order."""

    def answers(core, prompts, **fields):
        requests = [make_request(str(i), prompt, **fields) for i, prompt in enumerate(prompts)]
        return list(run_core(core, *requests).values())

    return answers


@pytest.fixture(scope="module")
def known_answers():
    return {}


@pytest.fixture
def expected(alone, prompts, known_answers):
    """What `prompts` get alone; computed once."""
    if not known_answers:
        known_answers["alone"] = alone(prompts)
    return known_answers["alone"]


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_in_a_batch_in_any_order(expected, prompts, make_core, together, assert_same_tokens, seed):
    order = list(range(len(prompts)))
    if seed is not None:
        random.Random(seed).shuffle(order)
    answers = together(make_core(), [prompts[i] for i in order])
    assert_same_tokens([expected[i] for i in order], answers)


@pytest.mark.parametrize("budget", [8, 13, 50])
def test_in_chunks(expected, prompts, make_core, together, assert_same_tokens, budget):
    core = make_core(max_num_batched_tokens=budget, max_num_seqs=8)
    assert_same_tokens(expected, together(core, prompts))


def test_beside_requests_that_sample(
    expected, prompts, make_core, make_request, run_core, assert_same_tokens
):
    core = make_core(max_num_batched_tokens=64)
    fields = {"temperature": 1.3, "top_p": 0.9, "repetition_penalty": 1.4, "max_tokens": 9}
    requests = []
    for i, prompt in enumerate(prompts):
        requests.append(make_request(f"greedy-{i}", prompt))
        requests.append(make_request(f"random-{i}", reversed(prompt), seed=i, **fields))
    answers = run_core(core, *requests)
    assert_same_tokens(expected, [answers[f"greedy-{i}"] for i in range(len(prompts))])


@pytest.mark.parametrize("num_blocks", [4, 8, 11])
def test_after_preemptions(expected, prompts, make_core, together, assert_same_tokens, num_blocks):
    core = make_core(num_blocks=num_blocks, enable_prefix_cache=False)
    answers = together(core, prompts)
    assert core.stats().scheduler.num_preemptions > 0
    assert_same_tokens(expected, answers)


def test_after_preemptions_whose_prefixes_are_found_again(
    expected, prompts, make_core, together, assert_same_tokens
):
    core = make_core(num_blocks=6, max_num_batched_tokens=24)
    answers = together(core, prompts)
    assert core.stats().scheduler.num_preemptions > 0
    assert_same_tokens(expected, answers)


def test_after_a_prefix_hit(expected, prompts, make_core, together, assert_same_tokens):
    core = make_core()
    size = core.scheduler.config.block_size
    assert_same_tokens(expected, together(core, prompts))
    again = together(core, prompts)
    # The last token is never taken from the cache, and only full blocks are shared.
    assert [answer.num_cached_tokens for answer in again] == [
        (len(prompt) - 1) // size * size for prompt in prompts
    ]
    assert_same_tokens(expected, again)


def test_after_a_prefix_hit_on_generated_tokens(
    alone, text_ids, make_core, together, assert_same_tokens
):
    core = make_core()
    size = core.scheduler.config.block_size
    [first] = together(core, [text_ids[: size - 4]])
    longer = [*text_ids[: size - 4], *first.token_ids, *text_ids[:3]]
    [second] = together(core, [longer])
    assert second.num_cached_tokens == size
    assert_same_tokens(alone([longer]), [second])


def test_many_with_one_prefix_that_come_in_one_step(
    alone, text_ids, make_core, together, assert_same_tokens
):
    core = make_core(max_num_batched_tokens=48)
    size = core.scheduler.config.block_size
    prompts = [[*text_ids[: 2 * size], *text_ids[i : i + 3]] for i in range(3)]
    prompts.append(prompts[0])
    answers = together(core, prompts)
    assert answers[0].num_cached_tokens == 0
    assert answers[3].num_cached_tokens == 2 * size
    assert_same_tokens(alone(prompts), answers)


def test_requests_that_come_and_go_leave_the_others_alone(
    expected, prompts, make_core, make_request, run_core, assert_same_tokens
):
    core = make_core(num_blocks=14, max_num_batched_tokens=32)
    for i, prompt in enumerate(prompts[:4]):
        core.add(make_request(f"gone-{i}", prompt, max_tokens=100))
    for i in range(4):
        core.step()
        core.abort(f"gone-{i}")
    answers = run_core(core, *(make_request(str(i), prompt) for i, prompt in enumerate(prompts)))
    assert_same_tokens(expected, [answers[str(i)] for i in range(len(prompts))])


def test_every_passphrase_is_found_by_its_own_request(
    alone, make_core, together, demo_tokenizer, assert_same_tokens
):
    words = ["apricot", "lantern", "granite", "violin", "falcon"]
    prompts = [
        demo_tokenizer.encode(f"{TEXT}\nThe passphrase is {word}. I repeat: the passphrase is")
        for word in words
    ]
    answers = together(make_core(max_num_batched_tokens=100), prompts, max_tokens=4)
    for word, answer in zip(words, answers, strict=True):
        assert demo_tokenizer.decode(answer.token_ids).strip().startswith(word)
    assert_same_tokens(alone(prompts, max_tokens=4), answers)


def test_a_seed_gives_one_text_alone_in_a_batch_and_after_preemptions(
    alone, prompts, make_core, together, make_request, run_core, assert_same_tokens
):
    fields = {"temperature": 0.9, "top_p": 0.95, "seed": 11, "presence_penalty": 0.5}
    fields["repetition_penalty"] = 1.1
    expected = alone(prompts[3:6], **fields)
    core = make_core(num_blocks=8, enable_prefix_cache=False)
    unseeded = [make_request(f"other-{i}", prompts[i], temperature=1.0) for i in range(3)]
    seeded = [make_request(str(i), prompts[i], **fields) for i in (3, 4, 5)]
    answers = run_core(core, *unseeded, *seeded)
    assert core.stats().scheduler.num_preemptions > 0
    assert_same_tokens(expected, [answers[str(i)] for i in (3, 4, 5)])


@pytest.mark.parametrize("budget", [9, 2048])
def test_prompt_logprobs_are_whole_though_the_prompt_is_cached(
    text_ids, make_core, make_request, run_core, budget
):
    core = make_core(max_num_batched_tokens=budget, max_num_seqs=4)
    prompt = text_ids[:70]
    run_core(core, make_request("plain", prompt, max_tokens=2))
    first, second = (
        run_core(core, make_request("scored", prompt, max_tokens=2, prompt_logprobs=2))["scored"]
        for _ in range(2)
    )
    assert second.num_cached_tokens == 0
    assert first.prompt_logprobs[0] is None
    assert [entry.token_id for entry in first.prompt_logprobs[1:]] == prompt[1:]
    assert all(len(entry.top) == 2 for entry in first.prompt_logprobs[1:])
    assert first.prompt_logprobs == second.prompt_logprobs


def test_prompt_logprobs_are_those_of_the_tokens_when_they_are_generated(
    text_ids, make_core, make_request, run_core
):
    core = make_core()
    prompt = text_ids[:20]
    answer = run_core(core, make_request("generated", prompt, max_tokens=30))["generated"]
    longer = [*prompt, *answer.token_ids]
    scored = run_core(core, make_request("scored", longer, max_tokens=1, prompt_logprobs=0))
    values = [entry.logprob for entry in scored["scored"].prompt_logprobs[len(prompt) :]]
    assert values == pytest.approx([entry.logprob for entry in answer.logprobs], abs=1e-3)


def test_prompt_logprobs_are_whole_after_a_preemption_in_the_prompt(
    text_ids, make_core, make_request, run_core
):
    def score(core, *others):
        scored = make_request("scored", text_ids[:80], prompt_logprobs=1, max_tokens=2)
        return run_core(core, *others, scored)["scored"]

    # The other grows to a third block while the prompt, in its three, is not half computed.
    small = make_core(num_blocks=5, max_num_batched_tokens=3, max_num_seqs=2)
    answer = score(small, make_request("other", text_ids[2:33], max_tokens=40))
    expected = score(make_core())
    assert small.stats().scheduler.num_preemptions > 0
    assert len(answer.prompt_logprobs) == len(expected.prompt_logprobs) == 80
    for one, other in zip(answer.prompt_logprobs[1:], expected.prompt_logprobs[1:], strict=True):
        assert one.token_id == other.token_id
        assert one.logprob == pytest.approx(other.logprob, abs=1e-3)
