"""Fixtures of the engine's tests: the demo model at f32, and cores that run on it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from carpool.engine.core import EngineCore, ModelExecutor, TokenOutput
from carpool.engine.executor import Executor, ExecutorConfig
from carpool.engine.generation import GenerationRequest, TokenLogprob
from carpool.engine.guidance import GuidanceVocabulary
from carpool.engine.options import Dtype, KVCacheDtype
from carpool.engine.sampling_params import SamplingParams
from carpool.engine.tokenizer import Tokenizer, TokenizerConfig
from carpool.models.resolved import MODEL_FILES, ResolvedModel
from carpool.scheduling.request import FinishReason
from carpool.scheduling.scheduler import Scheduler, SchedulerConfig

NUM_BLOCKS = 192


@pytest.fixture(scope="session")
def demo_tokenizer(resolved_model: ResolvedModel) -> Tokenizer:
    """The demo model's tokeniser: ids 0 to 16 are special, <|im_end|> (2) ends a text."""
    return Tokenizer(resolved_model.folder, TokenizerConfig.from_facts(resolved_model.tokenizer))


@pytest.fixture(scope="session")
def demo_guidance(demo_tokenizer: Tokenizer) -> GuidanceVocabulary:
    return GuidanceVocabulary(demo_tokenizer)


@pytest.fixture(scope="session")
def demo_executor(resolved_model: ResolvedModel) -> Executor:
    """The demo model at f32 with a KV cache of `NUM_BLOCKS` blocks, for all tests: each has
    a scheduler of its own, and what another test left in the cache must not matter."""
    config = ExecutorConfig(dtype=Dtype.F32, kv_cache_dtype=KVCacheDtype.F32)
    executor = Executor(resolved_model.folder / MODEL_FILES[0], config)
    executor.allocate_kv_cache(NUM_BLOCKS)
    return executor


MakeCore = Callable[..., EngineCore]


@pytest.fixture
def make_core(
    demo_executor: Executor, demo_tokenizer: Tokenizer, demo_guidance: GuidanceVocabulary
) -> MakeCore:
    """Make a core on the demo model. Takes the fields of `SchedulerConfig`, and `executor`."""

    def make(executor: ModelExecutor | None = None, **overrides: Any) -> EngineCore:
        fields = {
            "num_blocks": NUM_BLOCKS,
            "block_size": demo_executor.block_size,
            "max_num_seqs": 16,
            "max_num_batched_tokens": 2048,
            "max_model_len": 2048,
        }
        return EngineCore(
            executor or demo_executor,
            Scheduler(SchedulerConfig(**(fields | overrides))),
            eos_token_ids=demo_tokenizer.eos_token_ids,
            vocab_mask=demo_guidance.allocate_bitmask,
        )

    return make


@pytest.fixture(scope="session")
def make_request() -> Callable[..., GenerationRequest]:
    """Make a greedy request of 8 tokens that no end-of-sequence token ends; takes the fields
    of `SamplingParams`."""

    def make(request_id: str, prompt: Iterable[int], **fields: Any) -> GenerationRequest:
        sampling = {"max_tokens": 8, "temperature": 0.0, "ignore_eos": True, "logprobs": 2}
        return GenerationRequest(
            request_id=request_id,
            prompt_token_ids=tuple(prompt),
            sampling=SamplingParams(**(sampling | fields)),
        )

    return make


@dataclass
class Answer:
    """All that the core gave one request."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None
    error: str | None = None
    num_cached_tokens: int = 0
    is_grammar_error: bool = False

    def add(self, output: TokenOutput) -> None:
        assert self.finish_reason is None, "an output after the last one"
        self.token_ids += output.token_ids
        self.logprobs += output.logprobs
        self.prompt_logprobs = output.prompt_logprobs or self.prompt_logprobs
        self.finish_reason = output.finish_reason
        self.stop_reason, self.error = output.stop_reason, output.error
        self.num_cached_tokens = output.num_cached_tokens
        self.is_grammar_error = output.is_grammar_error


Answers = dict[str, Answer]


@pytest.fixture(scope="session")
def run_core() -> Callable[..., Answers]:
    """Add requests to a core and step until nothing is left; answers by request id."""

    def run(core: EngineCore, *requests: GenerationRequest) -> Answers:
        for request in requests:
            core.add(request)
        answers: Answers = {request.request_id: Answer() for request in requests}
        while core.has_unfinished:
            for output in core.step():
                answers.setdefault(output.request_id, Answer()).add(output)
            core.scheduler.check_invariants()
        return answers

    return run


@pytest.fixture(scope="session")
def assert_same_tokens() -> Callable[[Sequence[Answer], Sequence[Answer]], None]:
    """Fail at the first token that differs, with the margin by which the model preferred it:
    a small one is rounding, a large one is a wrong answer."""

    def check(expected: Sequence[Answer], answers: Sequence[Answer]) -> None:
        for number, (one, other) in enumerate(zip(expected, answers, strict=True)):
            assert other.error is None
            for position, pair in enumerate(zip(one.token_ids, other.token_ids, strict=False)):
                if pair[0] != pair[1]:
                    (_, best), (_, second) = one.logprobs[position].top
                    pytest.fail(
                        f"answer {number} differs at output token {position}: {pair[1]} for "
                        f"{pair[0]}, which led by a logit margin of {best - second:.6f}"
                    )
            assert len(one.token_ids) == len(other.token_ids)
            assert one.finish_reason == other.finish_reason

    return check
