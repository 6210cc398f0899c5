"""Chat templates: messages to prompt text, the way transformers renders them."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import meta, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from carpool.engine.plain_text import PlainText
from carpool.errors import CarpoolError

MAX_PROMPT_CHARS = 4_000_000

_TEMPLATE_FAILURES = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)

Message = Mapping[str, Any]


class ChatTemplateError(CarpoolError, ValueError):
    """The messages cannot be rendered; the text says why, in the template's words."""


class ChatTemplate:
    """A compiled chat template.

    Runs in Jinja's immutable sandbox with what transformers gives its templates:
    `raise_exception`, `strftime_now`, `tojson` that leaves non-ASCII alone, `break` and
    `continue`, and `{% generation %}`.

    Raises ChatTemplateError when `source` is not a template.
    """

    def __init__(
        self,
        source: str,
        bos_token: str = "",
        eos_token: str = "",
        *,
        special_tokens: Iterable[str] = (),
        now: Callable[[], datetime] = datetime.now,
        max_chars: int = MAX_PROMPT_CHARS,
    ) -> None:
        self.source = source
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._plain_text = PlainText(special_tokens)
        self._max_chars = max_chars
        environment = _environment(now, max_chars)
        try:
            self._template = environment.from_string(source)
            self._variables = meta.find_undeclared_variables(environment.parse(source))
        except (jinja2.TemplateError, RecursionError) as error:
            raise ChatTemplateError(f"the model's chat template is broken: {error}") from error

    @property
    def supports_tools(self) -> bool:
        """Whether the template reads `tools`; if not, tools must be told in a message."""
        return "tools" in self._variables

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> str:
        """Prompt text, with a `plain_text.MARK` inside of each special token that is none of the
        template's. `kwargs` are further template variables (`enable_thinking`, ...).

        Messages are OpenAI's: content in parts is joined to one text and the arguments of
        tool calls, which are JSON text, become objects, as templates expect.

        Raises ChatTemplateError whatever goes wrong in the template or its input.
        """
        mark = self._plain_text.mark
        shaped = [_template_message(m, f"messages[{i}]") for i, m in enumerate(messages)]
        try:
            context = {
                **self._tokens,
                **mark(kwargs),
                "messages": mark(shaped),
                "tools": mark(list(tools)) if tools else None,
                "add_generation_prompt": add_generation_prompt,
            }
            return self._bounded(self._template.generate(context))
        except ChatTemplateError:
            raise
        except _TEMPLATE_FAILURES as error:
            reason = str(error) or type(error).__name__
            raise ChatTemplateError(
                f"messages: the chat template refused them: {reason}"
            ) from error

    def _bounded(self, chunks: Iterable[str]) -> str:
        parts, num_chars = [], 0
        for chunk in chunks:
            num_chars += len(chunk)
            if num_chars > self._max_chars:
                raise ChatTemplateError(
                    f"messages: the prompt is over {self._max_chars} characters; send less text"
                )
            parts.append(chunk)
        return "".join(parts)


class _BoundedSandbox(ImmutableSandboxedEnvironment):
    """A sandbox whose templates cannot multiply a string past what may be rendered."""

    intercepted_binops = frozenset({"*", "**"})
    max_chars = MAX_PROMPT_CHARS

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and (abs(left) > 2**32 or abs(right) > 64):
            raise SecurityError(f"{operator}: the numbers are too large")
        sizes = [len(side) for side in (left, right) if isinstance(side, str | list | tuple)]
        counts = [side for side in (left, right) if isinstance(side, int)]
        if operator == "*" and sizes and counts and sizes[0] * counts[0] > self.max_chars:
            raise SecurityError(f"{operator}: the result would be over {self.max_chars} long")
        return super().call_binop(context, operator, left, right)


class _GenerationBlocks(Extension):
    """`{% generation %}` marks the assistant's text for training; here it renders as it is."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own attribute

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment(now: Callable[[], datetime], max_chars: int) -> ImmutableSandboxedEnvironment:
    environment = _BoundedSandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationBlocks]
    )
    environment.max_chars = max_chars

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    def strftime_now(pattern: str) -> str:
        return now().strftime(pattern)

    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _template_message(message: Message, where: str) -> dict[str, Any]:
    shaped = dict(message)
    shaped["content"] = content_text(message.get("content"), f"{where}.content")
    if message.get("tool_calls"):
        shaped["tool_calls"] = [
            _template_tool_call(call, f"{where}.tool_calls[{index}]")
            for index, call in enumerate(message["tool_calls"])
        ]
    return shaped


def content_text(content: Any, where: str = "content") -> str:
    """The text of OpenAI message content: a string, null, or a list of text parts.

    Raises ChatTemplateError for a part that is not text.
    """
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise ChatTemplateError(f"{where} must be a string or a list of parts, not {content!r:.80}")
    return "\n".join(_part_text(part, f"{where}[{index}]") for index, part in enumerate(content))


def _part_text(part: Any, where: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else part
    text = part.get("text") if isinstance(part, Mapping) else None
    if kind not in ("text", "input_text", "output_text") or not isinstance(text, str):
        raise ChatTemplateError(
            f"{where} is of type {kind!r:.80}; this model reads text parts only"
        )
    return text


def _template_tool_call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ChatTemplateError(f"{where}.function must have a name and arguments")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        arguments = _parse_arguments(arguments, f"{where}.function.arguments")
    return {**call, "function": {**function, "arguments": arguments or {}}}


def _parse_arguments(text: str, where: str) -> Any:
    try:
        return json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError) as error:
        raise ChatTemplateError(f"{where} is not JSON: {error}") from error
