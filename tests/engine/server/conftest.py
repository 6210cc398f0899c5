"""An engine that says what the test tells it to, behind the real HTTP application."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from carpool.engine.chat_template import ChatTemplate
from carpool.engine.client import EngineState
from carpool.engine.generation import GenerationDelta, GenerationRequest, TokenLogprob
from carpool.engine.guidance import GuidanceVocabulary
from carpool.engine.server import create_app
from carpool.engine.stats import EngineStats, StatsRecorder
from carpool.engine.tool_calls import ToolCallStyle
from carpool.engine.vocabulary import Vocabulary
from carpool.scheduling.outputs import SchedulerStats
from carpool.scheduling.request import FinishReason, WaitingReason

EOS = 256
TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'assistant' and loop.first %}"
    "{{ raise_exception('the assistant cannot speak first') }}{% endif %}"
    "<{{ message.role }}>{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


class ByteTokenizer:
    """One token per byte, and an end-of-sequence token."""

    def __init__(self) -> None:
        pieces = (*(bytes([value]) for value in range(256)), b"<eos>")
        self.vocabulary = Vocabulary(pieces, frozenset({EOS}))
        self.eos_token_ids = frozenset({EOS})
        self.special_token_ids = frozenset({EOS})
        self.bos_token_id = None

    @property
    def token_bytes(self) -> Sequence[bytes]:
        return self.vocabulary.token_bytes

    @property
    def vocab_size(self) -> int:
        return len(self.vocabulary)

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return list(text.encode())

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return self.vocabulary.decode(token_ids, skip_special_tokens)

    def token_text(self, token_id: int) -> str:
        return self.token_bytes[token_id].decode("utf-8", "replace")


def say(
    *texts: str,
    finish: FinishReason = FinishReason.STOP,
    stop_reason: int | str | None = None,
    num_cached: int = 0,
    error: str | None = None,
) -> "Script":
    """A script that gives out `texts`, one a step, the last with the finish reason."""

    def script(request: GenerationRequest) -> list[GenerationDelta]:
        deltas, num_output = [], 0
        for index, text in enumerate(texts):
            is_last = index == len(texts) - 1
            num_output += len(text.encode())
            deltas.append(
                GenerationDelta(
                    text=text,
                    token_ids=tuple(text.encode()),
                    logprobs=_logprobs(text, request.sampling.logprobs),
                    prompt_logprobs=_prompt_logprobs(request) if index == 0 else None,
                    finish_reason=finish if is_last else None,
                    stop_reason=stop_reason if is_last else None,
                    num_prompt_tokens=len(request.prompt_token_ids),
                    num_cached_tokens=num_cached,
                    num_output_tokens=num_output,
                    error=error if is_last else None,
                )
            )
        return deltas

    return script


def _logprobs(text: str, num_top: int | None) -> tuple[TokenLogprob, ...]:
    if num_top is None:
        return ()
    return tuple(_logprob(token_id, num_top) for token_id in text.encode())


def _prompt_logprobs(request: GenerationRequest) -> tuple[TokenLogprob | None, ...] | None:
    num_top = request.sampling.prompt_logprobs
    if num_top is None:
        return None
    return (None, *(_logprob(token_id, num_top) for token_id in request.prompt_token_ids[1:]))


def _logprob(token_id: int, num_top: int) -> TokenLogprob:
    top = ((token_id, -0.5), (ord("?"), float("-inf")))
    return TokenLogprob(token_id, -0.5, top[:num_top])


Script = Callable[[GenerationRequest], list[GenerationDelta]]


@dataclass
class ScriptedEngine:
    """Gives every request the deltas of `script`, and waits at `gate` before each but the first.

    `aborted` and `requests` record what the server did.
    """

    script: Script = field(default_factory=lambda: say("Hel", "lo"))
    state: EngineState = EngineState.READY
    retry_after_s: int = 7
    model_name: str = "tiny"
    model_aliases: tuple[str, ...] = ("gpt-tiny",)
    created: int = 1_700_000_000
    max_model_len: int = 2048
    tokenizer: Any = field(default_factory=ByteTokenizer)
    chat_template: ChatTemplate | None = field(default_factory=lambda: ChatTemplate(TEMPLATE))
    tool_call_style: ToolCallStyle | None = None
    vocabulary: GuidanceVocabulary | None = None
    refusal: Exception | None = None
    gate: asyncio.Event | None = None
    has_started: asyncio.Event = field(default_factory=asyncio.Event)
    requests: list[GenerationRequest] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    recorder: StatsRecorder = field(default_factory=StatsRecorder)
    waiting_reasons: dict[WaitingReason, int] = field(default_factory=dict)

    @property
    def vocab_size(self) -> int:
        return self.tokenizer.vocab_size

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[GenerationDelta, None]:
        if request.sampling.grammar is not None and self.vocabulary is not None:
            self.vocabulary.compile(request.sampling.grammar)
        self.requests.append(request)
        if self.refusal is not None:
            raise self.refusal
        is_finished = False
        try:
            for index, delta in enumerate(self.script(request)):
                if index == 1 and self.gate is not None:
                    self.has_started.set()
                    await self.gate.wait()
                is_finished = delta.finish_reason is not None
                yield delta
        finally:
            if not is_finished:
                self.aborted.append(request.request_id)

    def stats(self) -> EngineStats:
        return self.recorder.snapshot(
            SchedulerStats(
                num_running=2,
                num_waiting=3,
                num_blocks=100,
                num_used_blocks=25,
                num_cached_blocks=5,
                num_free_blocks=70,
                prefix_cache_queries=64,
                prefix_cache_hits=32,
                num_preemptions=1,
                waiting_reasons=self.waiting_reasons,
            )
        )


@pytest.fixture(scope="session")
def vocabulary() -> GuidanceVocabulary:
    return GuidanceVocabulary(ByteTokenizer())


@pytest.fixture
def engine(vocabulary: GuidanceVocabulary) -> ScriptedEngine:
    return ScriptedEngine(vocabulary=vocabulary)


class Client:
    """Calls the application in process, each call in an event loop of its own."""

    def __init__(self, engine: ScriptedEngine, **limits: int) -> None:
        self.engine = engine
        self.app = create_app(engine, **limits)
        self.base_url = "http://engine"
        self.peer: tuple[str, int] | None = ("127.0.0.1", 50000)
        """Who the server sees; None on a Unix socket."""

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        async def call() -> httpx.Response:
            transport = httpx.ASGITransport(
                self.app, raise_app_exceptions=False, client=self.peer or ("", 0)
            )
            if self.peer is None:
                transport.client = None  # type: ignore[assignment]
            async with httpx.AsyncClient(transport=transport, base_url=self.base_url) as client:
                return await client.request(method, path, **options)

        return asyncio.run(call())

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.request("GET", path, **options)

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        return self.request("POST", path, json=body, **options)

    def chat(self, text: str = "hi", **fields: Any) -> httpx.Response:
        messages = [{"role": "user", "content": text}]
        body = {"model": "tiny", "messages": messages, **fields}
        return self.post("/v1/chat/completions", body)

    def complete(self, prompt: Any = "hi", **fields: Any) -> httpx.Response:
        return self.post("/v1/completions", {"model": "tiny", "prompt": prompt, **fields})


@pytest.fixture
def client(engine: ScriptedEngine) -> Client:
    return Client(engine, max_body_bytes=100_000)


@pytest.fixture
def make_client() -> Callable[..., Client]:
    """Make a client of an engine; takes the limits of `create_app`."""
    return Client


@pytest.fixture
def events() -> Callable[[httpx.Response], list[Any]]:
    """The data of a stream's events; the last one is the text [DONE] if it ended well."""

    def parse(response: httpx.Response) -> list[Any]:
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.text.split("\n\n") if line]
        assert all(line.startswith("data: ") for line in lines)
        data = [line.removeprefix("data: ") for line in lines]
        return [item if item == "[DONE]" else json.loads(item) for item in data]

    return parse


@pytest.fixture
def script() -> Callable[..., Script]:
    """See `say`."""
    return say
