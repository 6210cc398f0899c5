"""/v1/chat/completions: from a checked request to requests for the engine."""

from collections.abc import Mapping, Sequence
from typing import Any

from carpool.engine.chat_protocol import ChatRequest
from carpool.engine.chat_response import ChatFormat, ChatResponse
from carpool.engine.chat_template import ChatTemplateError
from carpool.engine.client import EngineClient
from carpool.engine.constraint import output_constraint, tool_constraint
from carpool.engine.errors import invalid
from carpool.engine.prepared import Prepared, unix_time, validated
from carpool.engine.prompt_encoder import encode_prompt
from carpool.engine.request_builder import Caller, OutputWishes, build_requests, require_model
from carpool.engine.sse import ResponseHead
from carpool.engine.streaming import RequestFields
from carpool.engine.tool_calls import ToolCallStyle
from carpool.engine.tools_prompt import messages_with_tools

_RESERVED = frozenset({"self", "messages", "tools", "add_generation_prompt"})


def prepare_chat(engine: EngineClient, body: Mapping[str, Any], caller: Caller) -> Prepared:
    """Renders and tokenises, so it takes a while: not for the event loop.

    Raises ApiError.
    """
    request = validated(ChatRequest, body)
    model = require_model(engine, request.model)
    tools = [tool.model_dump(exclude_unset=True) for tool in request.usable_tools]
    style = tool_style(engine)
    constraint = tool_constraint(request, style, output_constraint(request))
    prompt = render_chat(
        engine,
        request.messages,
        tools,
        add_generation_prompt=request.add_generation_prompt,
        variables=request.chat_template_kwargs or {},
    )
    # Llama 3's tag in front of calls is a special token, and the parser has to see it.
    hides_tags = bool(tools) and style is ToolCallStyle.LLAMA3
    wishes = OutputWishes(
        prompt_field="messages",
        max_tokens=request.output_limit,
        logprobs=request.num_logprobs,
        grammar=constraint and constraint.grammar,
        skip_special_tokens=request.skip_special_tokens is not False and not hides_tags,
    )
    token_ids = encode_prompt(engine, prompt, "messages")
    requests = build_requests(engine, request, [token_ids], caller, wishes)
    chat_format = ChatFormat(
        head=ResponseHead(
            f"chatcmpl-{caller.request_id}", "chat.completion.chunk", unix_time(), model
        ),
        includes_usage=request.includes_usage,
        num_choices=request.num_choices,
        num_logprobs=request.num_logprobs,
        tool_style=style if tools else None,
        is_parallel=request.parallel_tool_calls is not False,
    )
    return Prepared(
        requests=requests,
        response=ChatResponse(engine.tokenizer, chat_format),
        is_stream=bool(request.stream),
        fields=RequestFields("messages", constraint.field if constraint else ""),
    )


def tool_style(engine: EngineClient) -> ToolCallStyle:
    """How this model is to write tool calls; a model that was taught no way is told Hermes'."""
    style = engine.tool_call_style
    return style if _has_native_tools(engine) and style else ToolCallStyle.HERMES


def render_chat(
    engine: EngineClient,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool,
    variables: Mapping[str, Any],
) -> str:
    """The prompt. Tools that the template cannot render are told in the system message.

    Raises ApiError (400).
    """
    template = engine.chat_template
    if template is None:
        raise invalid(f"{engine.model_name} has no chat template; use /v1/completions", "messages")
    if reserved := sorted(_RESERVED & variables.keys()):
        raise invalid(
            f"chat_template_kwargs sets {reserved[0]}, which has its own field",
            "chat_template_kwargs",
        )
    try:
        if not _has_native_tools(engine):
            messages, tools = messages_with_tools(messages, tools), []
        return template.render(
            messages, tools=tools, add_generation_prompt=add_generation_prompt, **variables
        )
    except ChatTemplateError as error:
        raise invalid(str(error), "messages", "chat_template_error") from error


def _has_native_tools(engine: EngineClient) -> bool:
    template = engine.chat_template
    return template is not None and template.supports_tools and engine.tool_call_style is not None
