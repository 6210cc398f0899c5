"""One model with its scheduler and sampler: the synchronous heart of the engine."""

import logging
import secrets
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from carpool.engine.generation import GenerationRequest, TokenLogprob
from carpool.engine.grammar_error import GrammarError
from carpool.engine.guidance import GrammarMatcher, apply_bitmask
from carpool.engine.logprobs_of_rows import logprobs_of_rows
from carpool.engine.sampler import sample
from carpool.engine.sampling_state import SamplingState
from carpool.engine.stats import EngineStats, StatsRecorder
from carpool.engine.step_cost import StepCost
from carpool.scheduling.outputs import (
    ModelRunnerOutput,
    RequestOutput,
    ScheduledRequest,
    SchedulerOutput,
)
from carpool.scheduling.request import FinishReason, Request
from carpool.scheduling.scheduler import Scheduler

log = logging.getLogger(__name__)

Logits = NDArray[np.float32]

SHARED_PROMPT_S = 0.1
"""Prompts in smaller pieces would cost everybody more steps than they save anybody time."""


class ModelExecutor(Protocol):
    """What runs a step: `Executor`, or a stand-in where no model is wanted."""

    vocab_size: int

    def execute(self, scheduled: tuple[ScheduledRequest, ...], num_logits: list[int]) -> Logits: ...


class TokenOutput(NamedTuple):
    """What one step, or an abort, gave one request. The last has a `finish_reason`."""

    request_id: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None
    error: str | None = None
    num_cached_tokens: int = 0
    is_grammar_error: bool = False


class _Entry(NamedTuple):
    """A request the core knows: what was asked, and what the sampler keeps of it."""

    state: SamplingState
    prompt_logprobs: list[TokenLogprob | None] | None


class EngineCore:
    """Takes requests, runs steps, gives tokens. One thread at a time may use it.

    A step that fails ends the requests in it with an error; the others go on.
    """

    def __init__(
        self,
        executor: ModelExecutor,
        scheduler: Scheduler,
        *,
        eos_token_ids: frozenset[int] = frozenset(),
        vocab_mask: Callable[[int], NDArray[np.int32]] | None = None,
        clock: Callable[[], float] = time.monotonic,
        draw_seed: Callable[[], int] = lambda: secrets.randbits(64),
    ) -> None:
        """`vocab_mask(n)` allocates bitmasks for `n` rows (`GuidanceVocabulary`)."""
        self.scheduler = scheduler
        self._executor = executor
        self._eos_token_ids = eos_token_ids
        self._vocab_mask = vocab_mask
        self._clock = clock
        self._draw_seed = draw_seed
        self._entries: dict[str, _Entry] = {}
        self._recorder = StatsRecorder()
        self._cost = StepCost()

    @property
    def has_unfinished(self) -> bool:
        return self.scheduler.has_unfinished

    def add(self, request: GenerationRequest, matcher: GrammarMatcher | None = None) -> None:
        """Queue a request, with a fresh matcher of its grammar if it has one.

        Raises RequestRejected.
        """
        params = request.sampling
        ends_at_eos = not params.ignore_eos or matcher is not None
        queued = Request(
            request.request_id,
            request.prompt_token_ids,
            max_tokens=params.max_tokens,
            min_tokens=params.min_tokens if matcher is None else 0,
            stop_token_ids=params.stop_token_ids
            | (self._eos_token_ids if ends_at_eos else frozenset()),
            person_id=request.person_id,
            skip_prefix_cache=params.prompt_logprobs is not None,
        )
        self.scheduler.add(queued, self._clock())
        seed = self._draw_seed() if params.seed is None else params.seed
        state = SamplingState(queued, params, seed, self._eos_token_ids, matcher)
        self._entries[request.request_id] = _Entry(
            state, None if params.prompt_logprobs is None else [None]
        )

    def abort(self, request_id: str, reason: FinishReason = FinishReason.ABORT) -> None:
        """End a request in whatever state it is; nothing if it is not there."""
        output = self.scheduler.abort(request_id, reason)
        if output is not None:
            self._forget(output.request, reason, self._clock())

    def step(self) -> list[TokenOutput]:
        """Run one step; empty if there is nothing to run."""
        started = self._clock()
        self._bound_shared_steps()
        output = self.scheduler.schedule(started)
        if output is None:
            return []
        self._record_admissions(output, started)
        logprobs: dict[str, TokenLogprob] = {}
        try:
            result = self._compute(output, logprobs)
        except Exception as error:
            # Whatever broke, broke these requests: they end, and the engine goes on.
            log.exception("step %d failed with %d requests", output.step_id, len(output.scheduled))
            message = f"the engine failed while computing this request: {error}"
            outputs = self.scheduler.fail(output, self._clock(), message)
        else:
            ended = self._clock()
            num_decodes = _num_decodes(output)
            num_prompt = output.num_scheduled_tokens - num_decodes
            self._cost.observe(num_decodes, num_prompt, ended - started)
            outputs = self.scheduler.update(output, result, ended)
        return [self._finish_output(each, logprobs) for each in outputs]

    def stats(self) -> EngineStats:
        return self._recorder.snapshot(self.scheduler.stats())

    def _bound_shared_steps(self) -> None:
        """Prompts of others may make a step twice as long as it would be, not more, or longer
        by `SHARED_PROMPT_S`."""
        self.scheduler.shared_prompt_tokens = self._cost.prompt_tokens_worth(
            len(self.scheduler.running), SHARED_PROMPT_S
        )
        self.scheduler.min_held_decodes = self._cost.decodes_worth_a_step()

    # ----------------------------------------------------------------- computing

    def _compute(
        self, output: SchedulerOutput, logprobs: dict[str, TokenLogprob]
    ) -> ModelRunnerOutput:
        """Run the model and choose tokens; fills `logprobs` by request id."""
        entries = [self._entries.get(item.request.request_id) for item in output.scheduled]
        num_logits = [
            item.num_tokens if entry and entry.prompt_logprobs is not None else item.is_sampling
            for item, entry in zip(output.scheduled, entries, strict=True)
        ]
        logits = self._executor.execute(output.scheduled, [int(count) for count in num_logits])
        rows: list[int] = []
        states: list[SamplingState] = []
        end = 0
        for item, entry, count in zip(output.scheduled, entries, num_logits, strict=True):
            begin, end = end, end + count
            if entry is None:
                continue  # aborted while the step was planned; nobody reads its token
            if entry.prompt_logprobs is not None:
                _extend_prompt_logprobs(entry, item, logits[begin:end])
            if item.is_sampling:
                rows.append(end - 1)
                states.append(entry.state)
        sampled = logits if len(rows) == len(logits) else logits[rows]
        return self._sample(sampled, states, logprobs)

    def _sample(
        self, logits: Logits, states: list[SamplingState], logprobs: dict[str, TokenLogprob]
    ) -> ModelRunnerOutput:
        if not states:
            return ModelRunnerOutput({})
        failed = self._mask_by_grammar(logits, states)
        chosen = sample(logits, states)
        tokens: dict[str, int] = {}
        for row, state in enumerate(states):
            request_id = state.request.request_id
            error = failed.get(row) or chosen.errors.get(row)
            error = error or _advance_grammar(state, chosen.token_ids[row])
            if error is not None:
                failed[row] = error
                continue
            tokens[request_id] = chosen.token_ids[row]
            if (logprob := chosen.logprobs[row]) is not None:
                logprobs[request_id] = logprob
        return ModelRunnerOutput(
            tokens, {states[row].request.request_id: error for row, error in failed.items()}
        )

    def _mask_by_grammar(self, logits: Logits, states: list[SamplingState]) -> dict[int, str]:
        """Forbid what grammars do not allow. Errors by row, for grammars that broke."""
        errors: dict[int, str] = {}
        rows = [row for row, state in enumerate(states) if state.matcher is not None]
        if not rows or self._vocab_mask is None:
            return errors
        bitmask = self._vocab_mask(len(rows))
        for place, row in enumerate(rows):
            matcher = states[row].matcher
            try:
                if matcher is not None:
                    matcher.fill_bitmask(bitmask[place])
            except GrammarError as error:
                errors[row] = _break_grammar(states[row], error)
        apply_bitmask(logits, bitmask, rows)
        return errors

    # ------------------------------------------------------------------- booking

    def _record_admissions(self, output: SchedulerOutput, now: float) -> None:
        for request, _, _, _ in output.scheduled:
            if request.first_scheduled_time == now and request.arrival_time is not None:
                self._recorder.admitted(now - request.arrival_time, request.num_prompt_tokens)

    def _finish_output(
        self, output: RequestOutput, logprobs: dict[str, TokenLogprob]
    ) -> TokenOutput:
        request, request_id = output.request, output.request_id
        is_first = request.num_output_tokens == len(output.new_token_ids) > 0
        if is_first and request.first_token_time is not None:
            self._recorder.first_token(request.first_token_time - (request.arrival_time or 0.0))
        self._recorder.generated(len(output.new_token_ids))
        entry = self._entries[request_id]
        prompt_logprobs = entry.prompt_logprobs if is_first else None
        if output.finish_reason is not None:
            self._forget(request, output.finish_reason, request.finished_time or self._clock())
        logprob = logprobs.get(request_id)
        return TokenOutput(
            request_id,
            output.new_token_ids,
            (logprob,) if logprob and output.new_token_ids else (),
            tuple(prompt_logprobs) if prompt_logprobs is not None else None,
            output.finish_reason,
            output.stop_reason,
            output.error,
            request.num_cached_tokens,
            entry.state.is_grammar_broken,
        )

    def _forget(self, request: Request, reason: FinishReason, now: float) -> None:
        self._entries.pop(request.request_id, None)
        first_token = request.first_token_time
        self._recorder.finished(
            reason,
            now - (request.arrival_time or 0.0),
            decode_time=0.0 if first_token is None else now - first_token,
            num_output_tokens=request.num_output_tokens,
        )


def _num_decodes(output: SchedulerOutput) -> int:
    return sum(item.num_tokens == 1 and item.is_sampling for item in output.scheduled)


def _advance_grammar(state: SamplingState, token_id: int) -> str | None:
    """Move the request's grammar on; says why if it cannot."""
    if state.matcher is None:
        return None
    try:
        state.matcher.accept(token_id)
    except GrammarError as error:
        return _break_grammar(state, error)
    return None


def _break_grammar(state: SamplingState, error: GrammarError) -> str:
    state.is_grammar_broken = True
    after = state.request.num_output_tokens
    return f"{error} (after {after:,} tokens of output)" if after else str(error)


def _extend_prompt_logprobs(entry: _Entry, item: ScheduledRequest, logits: Logits) -> None:
    """Note the log-probability of each prompt token that follows a computed one. What a
    preempted request computes again is there already."""
    known, request = entry.prompt_logprobs, item.request
    if known is None:
        return
    begin = max(item.start, len(known) - 1)
    end = min(item.start + item.num_tokens, request.num_prompt_tokens - 1)
    if begin >= end:
        return
    tokens = np.array(request.all_token_ids[begin + 1 : end + 1], np.int64)
    count = entry.state.params.prompt_logprobs or 0
    known += logprobs_of_rows(
        logits[begin - item.start : end - item.start], tokens, [count] * (end - begin)
    )
