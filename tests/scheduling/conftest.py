"""A scheduler without a model: a fake runner whose KV cache remembers what was written."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from carpool.scheduling.outputs import ModelRunnerOutput, RequestOutput, SchedulerOutput
from carpool.scheduling.request import FinishReason, Request
from carpool.scheduling.scheduler import MemoryPolicy, Scheduler, SchedulerConfig

VOCABULARY = 50
MASK = (1 << 61) - 1


def chain_of(namespace: str, token_ids: Iterable[int]) -> Iterator[int]:
    """A digest of everything up to and including each token: what attention depends on."""
    digest = sum(namespace.encode()) + 1
    for token_id in token_ids:
        digest = (digest * 1_000_003 ^ (token_id + 0x9E3779B9)) & MASK
        yield digest


def next_token(digest: int) -> int:
    return (digest >> 20) % VOCABULARY


def run_alone(request: Request) -> list[int]:
    """The output of `request` on a machine of its own."""
    tokens = request.all_token_ids[: request.num_prompt_tokens]
    *_, digest = chain_of(request.namespace, tokens)
    output: list[int] = []
    while len(output) < request.max_tokens:
        output.append(next_token(digest))
        if output[-1] in request.stop_token_ids and len(output) >= request.min_tokens:
            break
        digest = (digest * 1_000_003 ^ (output[-1] + 0x9E3779B9)) & MASK
    return output


class ShadowRunner:
    """Runs steps on a KV cache that stores, per slot, which token of what text it holds.

    Every slot a step reads must hold what the request's own tokens would have put there, by
    an earlier step; a slot that a step writes must belong to one request of the step.
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.slots: dict[tuple[int, int], tuple[str, int, int, int]] = {}
        self.num_slots_read = 0

    def run(self, output: SchedulerOutput) -> dict[str, int]:
        """Tokens sampled, by request id."""
        written: dict[tuple[int, int], tuple[str, int, int, int]] = {}
        sampled = {}
        for request, start, num_tokens, is_sampling in output.scheduled:
            end = start + num_tokens
            tokens = request.all_token_ids[:end]
            assert len(tokens) == end
            assert len(request.block_table) * self.block_size >= end
            for position, digest in enumerate(chain_of(request.namespace, tokens)):
                slot = self._slot(request, position)
                content = (request.namespace, tokens[position], position, digest)
                if position < start:
                    assert self.slots.get(slot) == content, (request, position, slot)
                    self.num_slots_read += 1
                else:
                    assert slot not in written, f"{slot} is written twice in one step"
                    written[slot] = content
            if is_sampling:
                assert end == request.num_tokens
                sampled[request.request_id] = next_token(digest)
        self.slots.update(written)
        return sampled

    def break_off(self, output: SchedulerOutput) -> None:
        """Leave garbage wherever the step would have written."""
        for request, start, num_tokens, _ in output.scheduled:
            for position in range(start, start + num_tokens):
                self.slots[self._slot(request, position)] = ("garbage", -1, -1, -1)

    def _slot(self, request: Request, position: int) -> tuple[int, int]:
        return request.block_table[position // self.block_size], position % self.block_size


class World:
    """A scheduler, its shadow runner, and everything that must hold after every event."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self.scheduler = Scheduler(config)
        self.runner = ShadowRunner(config.block_size)
        self.requests: list[Request] = []
        self.received: dict[Request, list[int]] = {}
        self.ended: dict[Request, RequestOutput] = {}
        self.output: SchedulerOutput | None = None
        self.held: set[Request] = set()
        self.now = 0.0

    def add(self, request: Request) -> Request:
        self.scheduler.add(request, self.now)
        self.requests.append(request)
        self.received[request] = []
        self.check()
        return request

    def abort(
        self, request: Request, reason: FinishReason = FinishReason.ABORT
    ) -> RequestOutput | None:
        table = list(request.block_table)
        output = self.scheduler.abort(request.request_id, reason)
        if self.is_in_flight(request):
            assert request.block_table == table
        self.receive([output] if output else [])
        assert request.is_finished
        return output

    def begin(self) -> SchedulerOutput | None:
        """Plan a step, and check the plan."""
        oldest = self.running()[:1]
        before = set(self.running())
        self.now += 1.0
        self.output = self.scheduler.schedule(self.now)
        if self.output is None:
            assert not self.scheduler.has_unfinished, "work, but no step"
            return None
        self._check_plan(self.output, oldest, before)
        self.check()
        return self.output

    def finish(self, failed: Sequence[str] = ()) -> list[RequestOutput]:
        """Run the planned step and book it."""
        output, self.output = self.output, None
        assert output is not None
        sampled = self.runner.run(output)
        result = ModelRunnerOutput(sampled, dict.fromkeys(failed, "grammar"))
        return self.receive(self.scheduler.update(output, result, self.now))

    def crash(self) -> list[RequestOutput]:
        """The planned step raises half way."""
        output, self.output = self.output, None
        assert output is not None
        self.runner.break_off(output)
        return self.receive(self.scheduler.fail(output, self.now, "out of memory"))

    def step(self) -> SchedulerOutput | None:
        output = self.begin()
        if output is not None:
            self.finish()
        return output

    def drain(self, max_steps: int = 5000) -> int:
        """Step until nothing is left; the number of steps."""
        for num_steps in range(max_steps):
            if self.step() is None:
                assert self.scheduler.stats().num_used_blocks == 0
                return num_steps
        raise AssertionError(f"not finished after {max_steps} steps: {self.running()}")

    def receive(self, outputs: list[RequestOutput]) -> list[RequestOutput]:
        for output in outputs:
            request = output.request
            assert request not in self.ended, "output after the end"
            assert output.request_id == request.request_id
            self.received[request].extend(output.new_token_ids)
            if output.finish_reason is not None:
                self.ended[request] = output
            self.check_output(request)
        self.check()
        return outputs

    def check_output(self, request: Request) -> None:
        """What was received is what the request would have said alone, each token once."""
        received, expected = self.received[request], run_alone(request)
        assert received == request.output_token_ids == expected[: len(received)]
        end = self.ended.get(request)
        if end is None or end.finish_reason in (FinishReason.ABORT, FinishReason.ERROR):
            return
        if end.finish_reason is FinishReason.LENGTH:
            assert len(received) == request.max_tokens
        elif end.stop_reason is not None:
            assert received == expected
            assert end.stop_reason == received[-1]

    def check(self) -> None:
        self.scheduler.check_invariants()
        stats = self.scheduler.stats()
        num_blocks = stats.num_used_blocks + stats.num_cached_blocks + stats.num_free_blocks
        assert num_blocks == stats.num_blocks == self.config.num_blocks
        assert sum(stats.waiting_reasons.values()) == stats.num_waiting
        assert stats.num_running == len(self.running())

    def running(self) -> list[Request]:
        """Oldest admission first."""
        return sorted(
            (request for request in self.requests if request.status == "running"),
            key=lambda request: request.admission_seq,
        )

    def waiting(self) -> list[Request]:
        return [request for request in self.requests if request.status in ("waiting", "preempted")]

    def is_in_flight(self, request: Request) -> bool:
        return self.output is not None and any(
            item.request is request for item in self.output.scheduled
        )

    def _check_plan(
        self, output: SchedulerOutput, oldest: list[Request], before: set[Request]
    ) -> None:
        sizes = [item.num_tokens for item in output.scheduled]
        planned = [item.request for item in output.scheduled]
        assert sum(sizes) == output.num_scheduled_tokens <= self.config.max_num_batched_tokens
        assert min(sizes) >= 1
        assert len(set(planned)) == len(planned) <= self.config.max_num_seqs
        assert set(oldest) <= set(planned), "the oldest must advance"
        decodes = {
            request
            for request in before & set(self.running())
            if request.num_tokens - request.num_computed_tokens == 1
        }
        held = decodes - set(planned)
        if held:
            assert self.scheduler.min_held_decodes is not None, "a decode in every step"
            assert not self.held, "never held twice in a row"
            joined = {request.person_id for request in planned if request not in before}
            assert joined, "held for somebody who joins"
            assert joined.isdisjoint(request.person_id for request in held), "and not for her own"
        self.held = held
        if output.preempted_request_ids:
            assert self.config.memory_policy is MemoryPolicy.PAGED
            assert set(self.running()) <= before, "nobody joins a step that preempted"
            last = max((request.admission_seq for request in self.running()), default=-1)
            for request in self.waiting():
                if request.request_id in output.preempted_request_ids:
                    assert request.admission_seq > last, "only later ones make room"


DEFAULTS: dict[str, Any] = {
    "num_blocks": 64,
    "block_size": 4,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 64,
    "max_model_len": 128,
}


@pytest.fixture
def make_config() -> Callable[..., SchedulerConfig]:
    return lambda **overrides: SchedulerConfig(**{**DEFAULTS, **overrides})


@pytest.fixture
def make_world(make_config: Callable[..., SchedulerConfig]) -> Callable[..., World]:
    """A world with a small scheduler; keyword arguments change its configuration."""
    return lambda **overrides: World(make_config(**overrides))


@pytest.fixture
def make_scheduler(make_config: Callable[..., SchedulerConfig]) -> Callable[..., Scheduler]:
    return lambda **overrides: Scheduler(make_config(**overrides))


@dataclass
class RequestMaker:
    """Requests with ids r0, r1, ...; prompts share nothing unless told to."""

    num_made: int = 0

    def __call__(
        self,
        num_tokens: int = 8,
        *,
        prefix: Sequence[int] = (),
        prompt: Sequence[int] | None = None,
        request_id: str | None = None,
        max_tokens: int = 4,
        **settings: Any,
    ) -> Request:
        index = self.num_made
        self.num_made += 1
        if prompt is None:
            tail = [1000 * (index + 1) + position for position in range(num_tokens - len(prefix))]
            prompt = [*prefix, *tail]
        return Request(request_id or f"r{index}", prompt, max_tokens=max_tokens, **settings)


@pytest.fixture
def make_request() -> RequestMaker:
    return RequestMaker()


@pytest.fixture
def make_requests(make_request: RequestMaker) -> Callable[..., list[Request]]:
    """make_requests(3, num_tokens=8, ...): that many requests with the same settings."""
    return lambda count, **settings: [make_request(**settings) for _ in range(count)]


@pytest.fixture
def reference() -> Callable[[Request], list[int]]:
    """The output of a request on a machine of its own."""
    return run_alone


@pytest.fixture(scope="session")
def world_of() -> type[World]:
    """World(config), for tests that draw their configuration."""
    return World


@pytest.fixture(scope="session")
def request_maker() -> type[RequestMaker]:
    """RequestMaker(), for property tests: each example counts from r0."""
    return RequestMaker
