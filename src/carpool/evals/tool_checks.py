"""Checks of the tools that an answer calls."""

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from jsonschema.protocols import Validator

from carpool.evals.answer import Answer, ToolCall
from carpool.evals.check import Question, quoted
from carpool.evals.json_checks import schema_fault


@dataclass(frozen=True, slots=True)
class CallsTool:
    """Some call is of `tool` (None: any), with JSON arguments that have at least `arguments`
    and are what `validator` takes."""

    tool: str | None
    arguments: dict[str, Any]
    validator: Validator | None = None
    name: str = "tool_call"

    async def fault(self, answer: Answer, question: Question) -> str | None:
        wanted = [call for call in answer.tool_calls if self.tool in (None, call.name)]
        if not wanted:
            called = ", ".join(call.name for call in answer.tool_calls) or "no tool"
            said = f" and says {quoted(answer.text)}" if answer.text else ""
            return f"it calls {called}, not {self.tool or 'a tool'}{said}"
        reasons = [await asyncio.to_thread(self._call_fault, call) for call in wanted]
        return None if None in reasons else reasons[0]

    def _call_fault(self, call: ToolCall) -> str | None:
        try:
            given = json.loads(call.arguments)
        except (ValueError, RecursionError):
            return f"the arguments of {call.name} are no JSON: {quoted(call.arguments)}"
        if not isinstance(given, dict):
            return f"the arguments of {call.name} are no object: {quoted(call.arguments)}"
        for name, value in self.arguments.items():
            if name not in given:
                return f"{call.name} is called without {name}"
            if given[name] != value:
                return f"{call.name} is called with {name} = {given[name]!r:.80}, not {value!r:.80}"
        if self.validator is None:
            return None
        reason = schema_fault(self.validator, given)
        return None if reason is None else f"the arguments of {call.name}: {reason}"


@dataclass(frozen=True, slots=True)
class CallsNoTool:
    name: str = "no_tool_call"

    async def fault(self, answer: Answer, question: Question) -> str | None:
        if not answer.tool_calls:
            return None
        return f"it calls {', '.join(call.name for call in answer.tool_calls)}"
