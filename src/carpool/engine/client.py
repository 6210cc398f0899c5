"""The engine as the HTTP server sees it."""

from collections.abc import AsyncGenerator
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from carpool.engine.chat_template import ChatTemplate
from carpool.engine.generation import GenerationDelta, GenerationRequest
from carpool.engine.stats import EngineStats
from carpool.engine.tool_calls import ToolCallStyle

if TYPE_CHECKING:
    from carpool.engine.tokenizer import Tokenizer


class EngineState(StrEnum):
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    """Finishing what runs before the process ends; nothing new is taken."""
    FAILED = "failed"


class QueueFull(Exception):
    """No room among the waiting requests; try again in `retry_after_s` seconds."""

    def __init__(self, message: str, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_s = retry_after_s


class EngineClient(Protocol):
    """Tokenised prompts in, deltas out.

    `model_name`, `model_aliases` and `created` (seconds since 1970) hold in every state;
    the rest only once the model is loaded. A request fits if prompt + max_tokens is at most
    `max_model_len`.
    """

    @property
    def state(self) -> EngineState: ...
    @property
    def retry_after_s(self) -> int: ...
    @property
    def model_name(self) -> str: ...
    @property
    def model_aliases(self) -> tuple[str, ...]: ...
    @property
    def created(self) -> int: ...
    @property
    def max_model_len(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def tokenizer(self) -> "Tokenizer": ...
    @property
    def chat_template(self) -> ChatTemplate | None: ...
    @property
    def tool_call_style(self) -> ToolCallStyle | None: ...

    def generate(self, request: GenerationRequest) -> AsyncGenerator[GenerationDelta, None]:
        """Deltas up to the one with a finish reason.

        Raises RequestRejected or QueueFull before the first delta, and GrammarError when its
        grammar cannot be used, which may show at any delta. Closing the generator, or
        cancelling the task that waits for it, aborts the request within one step.
        """
        ...

    def stats(self) -> EngineStats: ...
