"""Requests of /v1/chat/completions."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, PlainValidator, model_validator

from carpool.engine.errors import invalid
from carpool.engine.fields import at_most, refuse, whole
from carpool.engine.messages import check_messages
from carpool.engine.protocol import MAX_LOGPROBS, ApiModel, GenerationFields

MAX_TOOLS = 512


class Function(ApiModel):
    model_config = ConfigDict(extra="allow")

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(ApiModel):
    model_config = ConfigDict(extra="allow")

    type: Literal["function"]
    function: Function


ToolMode = Literal["none", "auto", "required"]


class NamedTool(ApiModel):
    name: str


def _tool_choice(value: Any) -> ToolMode | NamedTool | None:
    match value:
        case None | "none" | "auto" | "required":
            return value
        case {"type": "function", "function": {"name": str(name)}}:
            return NamedTool(name=name)
        case _:
            raise ValueError(
                'must be "none", "auto", "required" or '
                '{"type": "function", "function": {"name": ...}}'
            )


def _text_only(value: Any) -> bool:
    return value in (None, ["text"])


class ChatRequest(GenerationFields):
    messages: Annotated[list[dict[str, Any]], PlainValidator(check_messages)]
    max_tokens: Annotated[int | None, whole(1)] = None
    max_completion_tokens: Annotated[int | None, whole(1)] = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int | None, whole(0, MAX_LOGPROBS)] = None
    tools: Annotated[list[Tool] | None, at_most(MAX_TOOLS)] = None
    tool_choice: Annotated[ToolMode | NamedTool | None, PlainValidator(_tool_choice)] = None
    parallel_tool_calls: bool | None = None
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] | None = None
    modalities: Annotated[
        list[str] | None,
        refuse('modalities must be ["text"]; this model writes text only', unless=_text_only),
    ] = None
    functions: Annotated[
        None, refuse("functions must be absent; use tools", unless=lambda value: value is None)
    ] = None

    @model_validator(mode="after")
    def _fields_agree(self) -> "ChatRequest":
        newer, older = self.max_completion_tokens, self.max_tokens
        if newer is not None and older is not None and newer != older:
            raise invalid(
                f"max_completion_tokens is {newer:,} and max_tokens {older:,}; send one of them",
                "max_completion_tokens",
            )
        if self.top_logprobs and not self.logprobs:
            raise invalid(
                f"top_logprobs is {self.top_logprobs}, but logprobs is not true; set both",
                "top_logprobs",
            )
        self._check_tool_choice()
        return self

    def _check_tool_choice(self) -> None:
        names = [tool.function.name for tool in self.tools or ()]
        if self.tool_choice in (None, "none", "auto"):
            return
        if not names:
            raise invalid("tool_choice asks for a tool, but tools is empty", "tool_choice")
        if isinstance(self.tool_choice, NamedTool) and self.tool_choice.name not in names:
            raise invalid(
                f'tool_choice names "{self.tool_choice.name[:64]}", which is not among the tools '
                f"({', '.join(names[:10])})",
                "tool_choice",
            )

    @property
    def output_limit(self) -> int | None:
        if self.max_completion_tokens is not None:
            return self.max_completion_tokens
        return self.max_tokens

    @property
    def usable_tools(self) -> list[Tool]:
        """The tools the model may call: with tool_choice "none", none."""
        return [] if self.tool_choice == "none" else self.tools or []

    @property
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None
