"""Who computes what in the next step. A deterministic state machine, without phases.

Each request has `num_computed_tokens`, which catches up with `num_tokens`; a step says how
many tokens of each request to compute. Chunked prefill, prefix hits and resumed requests
are all the same thing. See `Scheduler.schedule` for the order.
"""

from collections import Counter
from collections.abc import Container
from itertools import chain
from math import inf

from carpool.scheduling.admission_round import AdmissionRound
from carpool.scheduling.config import BatchingPolicy, MemoryPolicy, QueuePolicy, SchedulerConfig
from carpool.scheduling.invariants import InvariantViolation, check_places
from carpool.scheduling.kv_cache import KVCacheManager
from carpool.scheduling.outputs import (
    ModelRunnerOutput,
    RequestOutput,
    ScheduledRequest,
    SchedulerOutput,
    SchedulerStats,
)
from carpool.scheduling.queue import FairShareQueue, FCFSQueue, WaitingQueue
from carpool.scheduling.rejection import RejectReason, RequestRejected, reject_if_impossible
from carpool.scheduling.request import FinishReason, Request, RequestStatus, WaitingReason
from carpool.scheduling.step_plan import StepPlan

__all__ = [
    "BatchingPolicy",
    "InvariantViolation",
    "MemoryPolicy",
    "ModelRunnerOutput",
    "QueuePolicy",
    "RejectReason",
    "RequestOutput",
    "RequestRejected",
    "ScheduledRequest",
    "Scheduler",
    "SchedulerConfig",
    "SchedulerOutput",
    "SchedulerStats",
]


_OLDEST_PART = 8
"""Of the prompt tokens of a shared step, one such part is the oldest prefill's, whoever waits."""


class Scheduler:
    """Owns the requests, their blocks and the queue; one step is in flight at a time.

    `schedule` plans a step, the caller runs it, and `update` (or `fail`) books the result.
    Between the two, requests may be added and aborted, and the block tables of the step
    stay as they are. Running requests stand in the order of their admission, and all of
    them before the preempted: only later ones make room for earlier ones, so the oldest
    always advances.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self._is_continuous = config.batching_policy is BatchingPolicy.CONTINUOUS
        self._kv = KVCacheManager(config)
        self._waiting: WaitingQueue[Request] = _make_queue(config)
        self._requests: dict[str, Request] = {}
        self._preempted: list[Request] = []
        self._running: list[Request] = []
        self._in_flight: SchedulerOutput | None = None
        self._round = AdmissionRound(config)
        self.shared_prompt_tokens: int | None = None
        """Most prompt tokens in a step while requests of several people are here: short steps,
        so that nobody waits for long on the prompts of another. None: no such bound."""
        self.min_held_decodes: int | None = None
        """From so many decodes on of people who have had as much or more, whoever is let in
        gets a step without them, at most every other one. None: decodes are never held."""
        self._has_held_decodes = False
        self._next_step_id = 0
        self._next_admission_seq = 0
        self._num_preemptions = 0
        self._prefix_cache_queries = 0
        self._prefix_cache_hits = 0

    @property
    def has_unfinished(self) -> bool:
        """Whether any request waits or runs."""
        return bool(self._requests)

    @property
    def has_schedulable_work(self) -> bool:
        """Whether `schedule` would return a step now."""
        return bool(self._requests) and self._in_flight is None

    @property
    def running(self) -> tuple[Request, ...]:
        """The requests that hold a seat, in the order of their admission."""
        return tuple(self._running)

    def add(self, request: Request, now: float) -> None:
        """Queue a new request. Raises RequestRejected if its id is in use or it can never run."""
        try:
            if request.request_id in self._requests:
                raise RequestRejected(
                    RejectReason.DUPLICATE_ID,
                    f"request id {request.request_id!r} is in use by an unfinished request",
                )
            reject_if_impossible(request, self.config)
        except RequestRejected:
            request.status = RequestStatus.REJECTED
            raise
        if request.arrival_time is None:
            request.arrival_time = now
        self._kv.extend_keys(request)
        self._requests[request.request_id] = request
        request.waiting_reason = WaitingReason.QUEUED
        self._waiting.push(request)

    def abort(
        self, request_id: str, reason: FinishReason = FinishReason.ABORT
    ) -> RequestOutput | None:
        """End a request now, whatever it is doing; None if there is no such request.

        The blocks of a request in flight are given back when its step is.
        """
        request = self._requests.get(request_id)
        if request is None:
            return None
        match request.status:
            case RequestStatus.WAITING:
                self._waiting.remove(request)
            case RequestStatus.PREEMPTED:
                self._preempted.remove(request)
            case _:
                self._running.remove(request)
                if not self._is_in_flight(request):
                    self._kv.release(request)
        return self._finish(request, reason)

    # ---------------------------------------------------------------- one step

    def schedule(self, now: float) -> SchedulerOutput | None:
        """Plan a step; None if there is nothing to do.

        Decodes first, oldest admission first; then prefills in flight; then the preempted,
        oldest first; then the waiting, in the queue's order. In a shared step whoever waits
        goes before the prefills in flight of people who have had as much or more, and may have a
        step without most of their decodes (`min_held_decodes`). A decode that finds no free
        block preempts the latest admitted, and then nothing is admitted in this step.
        """
        if self._in_flight is not None:
            raise RuntimeError(
                f"step {self._in_flight.step_id} is in flight; give it to update() or fail() first"
            )
        self._round.close()
        self._round = AdmissionRound(self.config)
        is_shared = self.shared_prompt_tokens is not None and self._is_shared()
        plan = StepPlan(self._token_budget(is_shared))
        held = self._let_in_before_decodes(plan, now) if is_shared else frozenset()
        prefills = self._continue_decodes(plan, held)
        if not held:
            if is_shared:
                prefills = self._prefill_the_least_served(prefills, plan, now)
            for request in prefills:
                self._plan_chunk(request, plan)
            if self._preempted or len(self._waiting):
                self._admit(plan, now)
            self._spend_the_rest(plan)
        self._has_held_decodes = bool(held)
        scheduled = plan.scheduled()
        if not scheduled:
            return None
        output = SchedulerOutput(
            self._next_step_id,
            scheduled,
            sum(item.num_tokens for item in scheduled),
            tuple(plan.preempted_request_ids),
        )
        self._next_step_id += 1
        self._in_flight = output
        return output

    def update(
        self, output: SchedulerOutput, result: ModelRunnerOutput, now: float
    ) -> list[RequestOutput]:
        """Book a step that ran; one output for each request that got a token or ended."""
        self._land(output)
        outputs: list[RequestOutput] = []
        tokens, failed, block_size = result.sampled_token_ids, result.failed, self.config.block_size
        for request, start, num_tokens, is_sampling in output.scheduled:
            error = failed.get(request.request_id)
            if error is None and is_sampling and request.request_id not in tokens:
                error = "the model runner returned no token for this request"
            if error is None:
                request.num_computed_tokens = start + num_tokens
                if (start + num_tokens) // block_size > request.num_registered_blocks:
                    self._kv.register(request)
            if request.finish_reason is not None:
                self._kv.release(request)
            elif error is not None:
                outputs.append(self._end_running(request, FinishReason.ERROR, now, error=error))
            elif is_sampling:
                outputs.append(self._append(request, tokens[request.request_id], now))
        if any(output.finish_reason is not None for output in outputs):
            self._running = [request for request in self._running if not request.is_finished]
        return outputs

    def fail(self, output: SchedulerOutput, now: float, message: str) -> list[RequestOutput]:
        """Book a step that did not run to its end: its requests end with an error, and none
        of the blocks it may have written can be found again."""
        self._land(output)
        outputs: list[RequestOutput] = []
        for request, *_ in output.scheduled:
            if request.is_finished:
                self._kv.release(request)
            else:
                outputs.append(self._end_running(request, FinishReason.ERROR, now, error=message))
        self._running = [request for request in self._running if not request.is_finished]
        return outputs

    # ------------------------------------------------------- planning the step

    def _token_budget(self, is_shared: bool) -> int:
        budget = self.config.max_num_batched_tokens
        if not is_shared or self.shared_prompt_tokens is None:
            return budget
        num_decodes = sum(
            len(request.all_token_ids) - request.num_computed_tokens <= 1
            for request in self._running
        )
        return min(budget, num_decodes + max(1, self.shared_prompt_tokens))

    def _is_shared(self) -> bool:
        """Whether requests of more than one person run or wait, and shares are kept of it."""
        if self.config.queue_policy is not QueuePolicy.FAIR:
            return False
        people = {request.person_id for request in self._running}
        return len(people | set(self._waiting.people())) > 1

    def _let_in_before_decodes(self, plan: StepPlan, now: float) -> frozenset[str]:
        """Let in the least served of those who wait, if that is worth a step without the decodes
        of others who have had as much or more. Returns those others; nobody if nobody came in."""
        if self.min_held_decodes is None or self._has_held_decodes or self._preempted:
            return frozenset()
        if not len(self._waiting):
            return frozenset()
        first, floor = self._least_served_who_wait()
        decoding = Counter(
            request.person_id
            for request in self._running
            if request.num_tokens - request.num_computed_tokens <= 1
        )
        service = self._waiting.service
        held = {who for who in decoding if who not in first and service(who) >= floor}
        num_held = sum(decoding[who] for who in held)
        if num_held < self.min_held_decodes:
            return frozenset()
        num_others = 1 + decoding.total() - num_held
        plan.budget -= num_others
        self._admit(plan, now, up_to=floor)
        plan.budget += num_others
        return frozenset(held) if self._round.admitted else frozenset()

    def _least_served_who_wait(self) -> tuple[frozenset[str], float]:
        """Who they are, and what they have had; nobody has had less than infinitely much."""
        services = {who: self._waiting.service(who) for who in self._waiting.people()}
        floor = min(services.values(), default=inf)
        return frozenset(who for who, service in services.items() if service == floor), floor

    def _prefill_the_least_served(
        self, prefills: list[Request], plan: StepPlan, now: float
    ) -> list[Request]:
        """Plan the prefills in flight of people who have had less than anybody who waits, and
        let in those who have had no more than the others of them. Returns those others, of which
        the oldest always advances."""
        service = self._waiting.service
        if prefills:
            self._plan_chunk(prefills[0], plan, max(1, plan.budget // _OLDEST_PART))
        prefills.sort(key=lambda request: service(request.person_id))
        first, floor = self._least_served_who_wait()
        ahead = [
            request
            for request in prefills
            if service(request.person_id) < floor or request.person_id in first
        ]
        for request in ahead:
            self._plan_chunk(request, plan)
        behind = [request for request in prefills if request not in ahead]
        if behind and first:
            limit = service(behind[0].person_id)
            below = [each for each in map(service, self._waiting.people()) if each < limit]
            self._admit(plan, now, up_to=max(below, default=floor))
        return behind

    def _continue_decodes(self, plan: StepPlan, held: Container[str]) -> list[Request]:
        """The oldest, and all that are not of people in `held`. Returns the prefills in flight."""
        block_size = self.config.block_size
        prefills: list[Request] = []
        position = 0
        while position < len(self._running):
            request = self._running[position]
            num_tokens = len(request.all_token_ids)
            if num_tokens - request.num_computed_tokens > 1:
                prefills.append(request)
            elif (position and request.person_id in held) or request in plan:
                pass
            elif num_tokens <= len(request.block_table) * block_size or self._grow(request, plan):
                plan.add_decode(request)
            position += 1
        return prefills

    def _grow(self, request: Request, plan: StepPlan) -> bool:
        """Give `request` one more block, taken from later ones if need be. False if it was
        itself the latest, and is preempted."""
        while not self._kv.grow(request):
            victim = self._running.pop()
            self._preempt(victim)
            plan.preempted_request_ids.append(victim.request_id)
            if victim is request:
                return False
        return True

    def _preempt(self, request: Request) -> None:
        self._kv.release(request)
        request.status = RequestStatus.PREEMPTED
        request.waiting_reason = WaitingReason.PREEMPTION
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        self._num_preemptions += 1
        self._preempted.insert(0, request)

    def _plan_chunk(self, request: Request, plan: StepPlan, limit: int | None = None) -> None:
        limit = limit or self.config.long_prefill_token_threshold or None
        self._charge_prompt(request, plan.add_chunk(request, limit))

    def _spend_the_rest(self, plan: StepPlan) -> None:
        """What nobody else could use goes to the prefills that were held to their share."""
        if self.config.long_prefill_token_threshold == 0:
            return
        for request in plan.chunked_requests():
            if plan.budget == 0:
                return
            self._charge_prompt(request, plan.add_chunk(request))

    def _charge_prompt(self, request: Request, end: int) -> None:
        """Charge prompt tokens up to `end`; what is recomputed is not charged again."""
        num_new = min(end, request.num_prompt_tokens) - request.num_charged_tokens
        if num_new > 0:
            self._waiting.charge(request.person_id, num_prompt_tokens=num_new)
            request.num_charged_tokens += num_new

    # --------------------------------------------------------------- admission

    def _admit(self, plan: StepPlan, now: float, up_to: float = inf) -> None:
        """Let in those who wait, as long as their people have had no more than `up_to`."""
        is_batch_running = bool(self._running or self._preempted)
        plan.headroom = sum(map(self._kv.may_grow, self._running))
        if not plan.preempted_request_ids:
            self._resume(plan)
        closed: WaitingReason | None = None
        if self._preempted:
            closed = WaitingReason.PREEMPTION
        elif is_batch_running and not self._is_continuous:
            closed = WaitingReason.BATCH
        num_admitted, held_back = len(self._round.admitted), set(self._round.held_back)
        for request in self._waiting.candidates(self._round.skipped_people):
            if self._round.is_over or self._waiting.service(request.person_id) > up_to:
                break
            if request in held_back:
                continue
            reason = closed or self._closed_reason(plan) or self._reason_to_wait(request, plan)
            if reason is not None:
                self._round.hold_back(request, reason)
            else:
                self._round.admit(request)
                self._start(request, plan, now)
        for request in self._round.admitted[num_admitted:]:
            self._waiting.remove(request)

    def _resume(self, plan: StepPlan) -> None:
        """Bring back the preempted, oldest first, as far as they fit."""
        while self._preempted and self._closed_reason(plan) is None:
            request = self._preempted[0]
            if not self._enter(request, plan):
                return
            del self._preempted[0]
            self._plan_chunk(request, plan)

    def _closed_reason(self, plan: StepPlan) -> WaitingReason | None:
        """Why nobody at all can join. A static batch is formed whole: who gets no tokens in
        this step gets them in the next."""
        if len(self._running) >= self.config.max_num_seqs:
            return WaitingReason.SEATS
        if plan.budget == 0 and self._is_continuous:
            return WaitingReason.TOKEN_BUDGET
        return None

    def _reason_to_wait(self, request: Request, plan: StepPlan) -> WaitingReason | None:
        """Why this one cannot join; None if it has joined."""
        passed_over = self._round.passed_over
        if passed_over and not self._waiting.may_pass(request, passed_over[0]):
            return WaitingReason.FAIR_SHARE
        reason = self._kv.reason_to_wait(request)
        if reason is None and not self._enter(request, plan):
            return WaitingReason.KV_BLOCKS
        return reason

    def _enter(self, request: Request, plan: StepPlan) -> bool:
        """Let `request` run if its blocks fit and one more is left for each running request
        that may still grow, so that nobody is let in only to be put out again."""
        if not self._kv.take_blocks(request, plan.headroom):
            return False
        plan.headroom += self._kv.may_grow(request)
        if request.admission_seq < 0:
            request.admission_seq = self._next_admission_seq
            self._next_admission_seq += 1
        request.status = RequestStatus.RUNNING
        request.waiting_reason = None
        self._running.append(request)
        return True

    def _start(self, request: Request, plan: StepPlan, now: float) -> None:
        request.first_scheduled_time = now
        request.num_cached_tokens = request.num_charged_tokens = request.num_computed_tokens
        if self.config.enable_prefix_cache and not request.skip_prefix_cache:
            self._prefix_cache_queries += request.num_prompt_tokens
            self._prefix_cache_hits += request.num_cached_tokens
        self._plan_chunk(request, plan)

    # -------------------------------------------------------- booking a result

    def _land(self, output: SchedulerOutput) -> None:
        if output is not self._in_flight:
            raise ValueError(f"step {output.step_id} is not the step in flight")
        self._in_flight = None

    def _is_in_flight(self, request: Request) -> bool:
        return self._in_flight is not None and any(
            item.request is request for item in self._in_flight.scheduled
        )

    def _append(self, request: Request, token_id: int, now: float) -> RequestOutput:
        request.all_token_ids.append(token_id)
        self._waiting.charge(request.person_id, num_output_tokens=1)
        if request.first_token_time is None:
            request.first_token_time = now
        num_output_tokens = len(request.all_token_ids) - request.num_prompt_tokens
        if token_id in request.stop_token_ids and num_output_tokens >= request.min_tokens:
            return self._end_running(request, FinishReason.STOP, now, token_id, token_id)
        if num_output_tokens >= request.max_tokens:
            return self._end_running(request, FinishReason.LENGTH, now, token_id)
        return RequestOutput(request, request.request_id, (token_id,))

    def _end_running(
        self,
        request: Request,
        reason: FinishReason,
        now: float,
        token_id: int | None = None,
        stop_reason: int | None = None,
        error: str | None = None,
    ) -> RequestOutput:
        """Blocks back, and the last output; the caller takes it off the running list."""
        self._kv.release(request)
        request.finished_time = now
        new_token_ids = () if token_id is None else (token_id,)
        return self._finish(request, reason)._replace(
            new_token_ids=new_token_ids, stop_reason=stop_reason, error=error
        )

    def _finish(self, request: Request, reason: FinishReason) -> RequestOutput:
        del self._requests[request.request_id]
        request.finish(reason)
        return RequestOutput(request, request.request_id, finish_reason=reason)

    # ------------------------------------------------------------- looking in

    def stats(self) -> SchedulerStats:
        num_waiting = len(self._waiting) + len(self._preempted)
        reasons = Counter(
            request.waiting_reason
            for request in chain(self._round.held_back, self._preempted)
            if request.waiting_reason is not None
        )
        reasons[WaitingReason.QUEUED] = num_waiting - sum(reasons.values())
        return SchedulerStats(
            num_running=len(self._running),
            num_waiting=num_waiting,
            num_blocks=self._kv.pool.num_blocks,
            num_used_blocks=self._kv.pool.num_used,
            num_cached_blocks=self._kv.pool.num_cached,
            num_free_blocks=self._kv.pool.num_free,
            prefix_cache_queries=self._prefix_cache_queries,
            prefix_cache_hits=self._prefix_cache_hits,
            num_preemptions=self._num_preemptions,
            waiting_reasons=dict(+reasons),
        )

    def check_invariants(self) -> None:
        """Raise InvariantViolation if the books disagree. For tests, and for idle engines."""
        ended_in_flight = [
            item.request
            for item in (self._in_flight.scheduled if self._in_flight else ())
            if item.request.is_finished
        ]
        self._kv.check_invariants(chain(self._running, ended_in_flight))
        check_places(self._requests, self._running, self._preempted, list(self._waiting))
        if len(self._running) > self.config.max_num_seqs:
            raise InvariantViolation(f"{len(self._running)} requests are running")


def _make_queue(config: SchedulerConfig) -> WaitingQueue[Request]:
    if config.queue_policy is QueuePolicy.FCFS:
        return FCFSQueue()
    return FairShareQueue(
        person_weights=config.person_weights,
        prompt_token_weight=config.prompt_token_weight,
        output_token_weight=config.output_token_weight,
        max_lead=config.output_token_weight * min(config.max_model_len, config.kv_tokens),
    )
