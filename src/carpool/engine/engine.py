"""The engine as coroutines use it: a thread runs the steps, and streams deliver the tokens."""

import asyncio
import logging
import math
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from functools import partial
from itertools import count

from carpool.engine.chat_template import ChatTemplate
from carpool.engine.client import EngineState, QueueFull
from carpool.engine.compiled_grammars import CompiledGrammars
from carpool.engine.core import EngineCore, TokenOutput
from carpool.engine.generation import GenerationDelta, GenerationRequest
from carpool.engine.grammar_error import GrammarError
from carpool.engine.guidance import GrammarMatcher
from carpool.engine.loader import LoadedModel
from carpool.engine.stats import EngineStats
from carpool.engine.text_stream import TextStream
from carpool.engine.tokenizer import Tokenizer
from carpool.engine.tool_calls import ToolCallStyle, tool_call_style
from carpool.scheduling.rejection import RejectReason, RequestRejected
from carpool.scheduling.request import FinishReason

log = logging.getLogger(__name__)

LOADING_RETRY_S = 5
STATS_MAX_AGE_S = 0.25

Command = Callable[[EngineCore], None]
Event = TokenOutput | RequestRejected


class AsyncEngine:
    """An `EngineClient` in this process. The thread alone touches the core; commands reach
    it through a queue, and its outputs come back to the event loop once per step."""

    def __init__(
        self,
        load: Callable[[], LoadedModel],
        model_name: str,
        *,
        model_aliases: tuple[str, ...] = (),
        max_waiting: int = 1024,
    ) -> None:
        self.model_name = model_name
        self.model_aliases = model_aliases
        self.created = int(time.time())
        self.state = EngineState.LOADING
        self.error: BaseException | None = None
        self._load = load
        self._loaded: LoadedModel | None = None
        self._max_waiting = max_waiting
        self._live_ids: set[str] = set()
        # By the ids that the core knows. Each is new: what the core still says of a stream
        # that was closed must not reach the next request with the same id.
        self._streams: dict[str, asyncio.Queue[Event]] = {}
        self._serial_numbers = count()
        self._commands: deque[Command] = deque()
        self._has_commands = threading.Event()
        self._is_stopping = False
        self._stats: EngineStats | None = None
        self._grammars: CompiledGrammars | None = None
        self._warming_up: asyncio.Future[None] | None = None
        self._settled = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="step-loop", daemon=True)

    # ------------------------------------------------------------------ life

    def start(self) -> None:
        """Begin to load the model; `wait_until_loaded` says how it went."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def wait_until_loaded(self) -> LoadedModel:
        """Raises what `load` raised."""
        await self._settled.wait()
        if self._loaded is None:
            raise self.error or RuntimeError("the engine stopped while it was loading")
        return self._loaded

    async def drain(self, within_s: float) -> bool:
        """Take nothing new and wait for what runs; False if some of it had to be aborted
        after `within_s` seconds."""
        if self.state is not EngineState.FAILED:
            self.state = EngineState.DRAINING
        try:
            await asyncio.wait_for(self._idle.wait(), within_s)
        except TimeoutError:
            for core_id in list(self._streams):
                self._send(partial(_abort, core_id, FinishReason.ABORT))
                self._put(TokenOutput(core_id, finish_reason=FinishReason.ABORT))
            return False
        return True

    async def stop(self) -> None:
        """End the thread; what still runs is dropped. A load in progress is not waited for."""
        self._is_stopping = True
        self._has_commands.set()
        if self._warming_up is not None:
            self._warming_up.cancel()
            await asyncio.gather(self._warming_up, return_exceptions=True)
        if self._grammars is not None:
            await self._grammars.stop()
        if self.state is not EngineState.LOADING and self._thread.is_alive():
            await asyncio.to_thread(self._thread.join)

    # ------------------------------------------------------------ what it serves

    @property
    def retry_after_s(self) -> int:
        """Seconds after which to try again while it loads, or when it is full: about what a
        request takes."""
        if self.state is EngineState.LOADING or self._stats is None:
            return LOADING_RETRY_S
        latency = self._stats.e2e_request_latency
        return max(1, min(60, math.ceil(latency.sum / max(1, sum(latency.counts)))))

    @property
    def _model(self) -> LoadedModel:
        if self._loaded is None:
            raise RuntimeError(f"{self.model_name} is not loaded")
        return self._loaded

    @property
    def max_model_len(self) -> int:
        return self._model.scheduler_config.max_model_len

    @property
    def vocab_size(self) -> int:
        return self._model.executor.vocab_size

    @property
    def tokenizer(self) -> Tokenizer:
        return self._model.tokenizer

    @property
    def _compiled_grammars(self) -> CompiledGrammars:
        if self._grammars is None:
            raise RuntimeError(f"{self.model_name} is not loaded")
        return self._grammars

    @property
    def chat_template(self) -> ChatTemplate | None:
        return self._model.chat_template

    @property
    def tool_call_style(self) -> ToolCallStyle | None:
        return tool_call_style(self._model.tokenizer.config.chat_template)

    @property
    def num_streams(self) -> int:
        """Requests that run or wait."""
        return len(self._streams)

    def stats(self) -> EngineStats:
        """As of the last step, or at most `STATS_MAX_AGE_S` older while it is busy."""
        if self._stats is None:
            raise RuntimeError(f"{self.model_name} is not loaded")
        return self._stats

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[GenerationDelta, None]:
        """See `EngineClient.generate`."""
        async with AsyncExitStack() as stack:
            matcher = None
            if (grammar := request.sampling.grammar) is not None:
                making = self._compiled_grammars.matcher(grammar, request.person_id)
                matcher = await stack.enter_async_context(making)
            stream = await stack.enter_async_context(aclosing(self._generate(request, matcher)))
            async for delta in stream:
                yield delta

    async def _generate(
        self, request: GenerationRequest, matcher: GrammarMatcher | None
    ) -> AsyncGenerator[GenerationDelta, None]:
        self._require_room(request.request_id)
        core_id = f"{request.request_id}#{next(self._serial_numbers)}"
        events = self._open(request.request_id, core_id)
        self._send(partial(self._add, replace(request, request_id=core_id), matcher))
        reason = FinishReason.ABORT
        try:
            stream = TextStream(request, self.tokenizer.vocabulary)
            while True:
                event = await events.get()
                if isinstance(event, RequestRejected):
                    reason = FinishReason.ERROR
                    raise event
                if event.is_grammar_error:
                    reason = FinishReason.ERROR
                    raise GrammarError(event.error)
                delta = stream.add(event)
                if delta.finish_reason is not None:
                    reason = delta.finish_reason
                    self._close(request.request_id, core_id, reason)
                yield delta
                if delta.finish_reason is not None:
                    return
        finally:
            self._close(request.request_id, core_id, reason)

    def _require_room(self, request_id: str) -> None:
        """Raises QueueFull or RequestRejected, or RuntimeError for an engine that has failed."""
        if self.state is EngineState.FAILED:
            raise RuntimeError(f"the engine has failed: {self.error}")
        if self.state is EngineState.DRAINING:
            raise QueueFull("the engine is shutting down; try again", self.retry_after_s)
        limit = self._model.scheduler_config.max_num_seqs + self._max_waiting
        if len(self._streams) >= limit:
            raise QueueFull(
                f"{len(self._streams)} requests are running or waiting, and the limit is {limit} "
                f"(max_num_seqs + max_waiting); try again in {self.retry_after_s} s",
                self.retry_after_s,
            )
        if request_id in self._live_ids:
            raise RequestRejected(
                RejectReason.DUPLICATE_ID,
                f"request id {request_id!r} is in use by an unfinished request",
            )

    def _open(self, request_id: str, core_id: str) -> asyncio.Queue[Event]:
        self._live_ids.add(request_id)
        events: asyncio.Queue[Event] = asyncio.Queue()
        self._streams[core_id] = events
        self._idle.clear()
        return events

    def _close(self, request_id: str, core_id: str, reason: FinishReason) -> None:
        """Forget a stream; if the core still has its request, that ends with `reason`."""
        if self._streams.pop(core_id, None) is None:
            return
        self._live_ids.discard(request_id)
        self._send(partial(_abort, core_id, reason))
        if not self._streams:
            self._idle.set()

    # ------------------------------------------------------- event loop <-> thread

    def _send(self, command: Command) -> None:
        self._commands.append(command)
        self._has_commands.set()

    def _call(self, function: Callable[[], None]) -> None:
        """Run `function` in the event loop, unless that has ended."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function)

    def _deliver(self, outputs: list[TokenOutput]) -> None:
        for output in outputs:
            self._put(output)

    def _put(self, event: TokenOutput) -> None:
        if (events := self._streams.get(event.request_id)) is not None:
            events.put_nowait(event)

    def _refuse(self, core_id: str, error: RequestRejected) -> None:
        if (events := self._streams.get(core_id)) is not None:
            events.put_nowait(error)

    # ------------------------------------------------------------- in the thread

    def _run(self) -> None:
        try:
            loaded = self._load()
        except BaseException as error:
            self.error = error
            self._call(partial(self._settle, EngineState.FAILED))
            return
        self._loaded = loaded
        self._grammars = CompiledGrammars(loaded.vocabulary)
        self._stats = loaded.core.stats()
        self._call(partial(self._settle, EngineState.READY))
        try:
            self._run_steps(loaded.core)
        except BaseException as error:
            # A panic in a Rust library is no Exception, and streams would wait for ever.
            log.exception("the step loop failed; the engine cannot go on")
            self.error = error
            self._call(self._fail)

    def _settle(self, state: EngineState) -> None:
        if self.state is EngineState.LOADING:
            self.state = state
        if self._grammars is not None:
            # Requests without a grammar need not wait for this.
            self._warming_up = asyncio.ensure_future(_warmed_up(self._grammars))
        self._settled.set()

    def _fail(self) -> None:
        self.state = EngineState.FAILED
        for core_id in list(self._streams):
            message = f"the engine has failed: {self.error}"
            self._put(TokenOutput(core_id, finish_reason=FinishReason.ERROR, error=message))

    def _run_steps(self, core: EngineCore) -> None:
        taken_at = 0.0
        while not self._is_stopping:
            self._take_commands(core)
            outputs = core.step()
            now = time.monotonic()
            if not core.has_unfinished:
                core.scheduler.check_invariants()
            if not core.has_unfinished or now - taken_at > STATS_MAX_AGE_S:
                self._stats, taken_at = core.stats(), now
            if outputs:
                self._call(partial(self._deliver, outputs))

    def _take_commands(self, core: EngineCore) -> None:
        """Carry out what was asked; wait for it when there is nothing to compute."""
        if not core.has_unfinished and not self._commands and not self._is_stopping:
            self._has_commands.wait()
        self._has_commands.clear()
        while self._commands:
            self._commands.popleft()(core)

    def _add(
        self, request: GenerationRequest, matcher: GrammarMatcher | None, core: EngineCore
    ) -> None:
        try:
            core.add(request, matcher)
        except RequestRejected as error:
            self._call(partial(self._refuse, request.request_id, error))


def _abort(core_id: str, reason: FinishReason, core: EngineCore) -> None:
    core.abort(core_id, reason)


async def _warmed_up(grammars: CompiledGrammars) -> None:
    try:
        await grammars.start()
    except OSError as error:  # the first grammar will try again, and say so
        log.warning("the process that tries grammars out did not start: %s", error)
